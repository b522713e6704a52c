// Both ends of a connection over software PCIe bridges in one process, and what is checked of them.
//
// Every test runs in a process of its own, since the library is initialized once in each; so a
// check that fails is an exception there.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/settings.h"
#include "core/testing/in_child.h"
#include "transport/registry.h"
#include "transport/transport.h"
#include "transport/window/sisci/testing/fabric.h"

namespace ropewalk::transport::window::sisci::testing {

using Clock = std::chrono::steady_clock;
using Settings = std::vector<std::pair<std::string, std::string>>;
constexpr auto kPatience = std::chrono::seconds(60);
constexpr std::size_t kLarge = 1'234'567;

#define CHECK_THAT(condition) \
  if (!(condition)) throw std::runtime_error(std::string(#condition) + " does not hold")

// Both ends of a connection in one process, and the log.
class Ends {
 public:
  explicit Ends(const SoftwareFabric& fabric, const Settings& settings = {})
      : log_(fabric.folder() / "log") {
    log::configure("INFO", "NET", log_.string());
    Config config;
    config.set("SISCI_LIBRARY", RW_SOFTWARE_SISCI, "test");
    config.set("CUDA_LIBRARY", "libnone.so", "test");
    config.set("SISCI_PIO_BYTES", "8K", "test");  // transfers are counted
    for (const auto& [name, value] : settings) config.set(name, value, "test");
    transport_ = transport::make_transport("sisci", config);
  }
  Transport& transport() { return *transport_; }

  void connect() {
    listener_ = transport_->listen(0);
    const auto connector = transport_->connect(0, listener_->handle());
    until([&] {
      if (!sender) sender = connector->poll();
      if (!receiver) receiver = listener_->accept();
      return sender && receiver;
    });
  }
  // @return whether what came is what was sent
  bool exchange(std::size_t bytes, bool registered = true) {
    std::vector<char> out(bytes);
    for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<char>(i * 7 + i / 251 + turn_);
    ++turn_;
    std::vector<char> in(bytes);
    std::unique_ptr<Registration> from;
    std::unique_ptr<Registration> to;
    if (registered) {
      from = sender->register_memory(out.data(), bytes, MemoryKind::kHost);
      to = receiver->register_memory(in.data(), bytes, MemoryKind::kHost);
    }
    const ReceiveBuffer buffer{in.data(), in.size(), 0, to.get()};
    const auto receive = receiver->receive({&buffer, 1});
    std::unique_ptr<Request> send;
    bool sent = false;
    bool received = false;
    until([&] {
      if (!send) send = sender->send(out.data(), bytes, 0, from.get());
      received = received || receive->test();
      sent = sent || (send && send->test());
      return sent && received;
    });
    return in == out;
  }
  // Several sizes, twice: the first messages may pass before all methods are judged.
  bool exchange_all(bool registered = true) {
    for (int round = 0; round < 2; ++round) {
      for (const std::size_t bytes : {0UL, 8UL, 5'000UL, 65'536UL, kLarge}) {
        if (!exchange(bytes, registered)) return false;
      }
    }
    return true;
  }
  [[nodiscard]] bool logged(const std::string& words) const {
    return text().find(words) != std::string::npos;
  }
  [[nodiscard]] std::string text() const {
    std::ifstream file(log_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  template <typename Done>
  static void until(Done done) {
    const Clock::time_point end = Clock::now() + kPatience;
    while (!done()) {
      if (Clock::now() > end) throw std::runtime_error("hangs");
    }
  }

 private:
  std::filesystem::path log_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Listener> listener_;
  std::size_t turn_ = 0;

 public:
  std::unique_ptr<SendConnection> sender;
  std::unique_ptr<ReceiveConnection> receiver;
};

inline void alone(const std::string& fabric_settings,
                  const std::function<void(const SoftwareFabric&)>& body) {
  const SoftwareFabric fabric(fabric_settings);
  EXPECT_EQ(ropewalk::testing::in_child([&] {
              body(fabric);
              return 0;
            }),
            0);
}

inline std::string words_of(const std::function<void()>& body, Errc expected) {
  try {
    body();
  } catch (const Error& error) {
    if (error.code() != expected) {
      throw std::runtime_error(std::string("another code: ") + error.what());
    }
    return error.what();
  }
  throw std::runtime_error("no error");
}

#define EXPECT_WORDS(text, words)                                                      \
  if ((text).find(words) == std::string::npos) {                                       \
    throw std::runtime_error(std::string("not there: ") + (words) + " in: " + (text)); \
  }

}  // namespace ropewalk::transport::window::sisci::testing
