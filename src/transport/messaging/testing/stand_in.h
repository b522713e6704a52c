// For tests of providers over stand-ins for their libraries: the stand-ins' own functions, the
// log's lines, and two ends of one process.
#pragma once

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/log.h"
#include "transport/transport.h"

namespace ropewalk::transport::messaging::testing {

/// A stand-in's own functions.
class StandInFunctions {
 public:
  /// @param prefix of the functions' names
  StandInFunctions(const char* library, std::string prefix)
      : library_(dlopen(library, RTLD_NOW)), prefix_(std::move(prefix)) {
    if (library_ == nullptr) std::abort();
  }
  void configure(const std::string& text) const {
    function<void (*)(const char*)>("configure")(text.c_str());
  }
  [[nodiscard]] long count(const char* name) const {
    return function<long (*)(const char*)>("count")(name);
  }

 private:
  template <typename Function>
  [[nodiscard]] Function function(const char* name) const {
    return reinterpret_cast<Function>(dlsym(library_, (prefix_ + name).c_str()));
  }

  void* library_;
  std::string prefix_;
};

/// The log's lines since the Hearing began.
inline std::vector<std::string>& heard() {
  static std::vector<std::string> lines;
  return lines;
}
class Hearing {
 public:
  Hearing() {
    heard().clear();
    log::set_sink([](log::Level, std::uint32_t, const char* line) { heard().emplace_back(line); });
  }
  ~Hearing() { log::set_sink(nullptr); }
  Hearing(const Hearing&) = delete;
  Hearing& operator=(const Hearing&) = delete;
};
/// The lines that have `text`.
inline int lines_with(const std::string& text) {
  int found = 0;
  for (const std::string& line : heard()) found += line.find(text) != std::string::npos ? 1 : 0;
  return found;
}

/// Repeats `step` until it gives true. @throws std::runtime_error after a minute
template <typename Step>
void until(Step step) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!step()) {
    if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("hangs");
    std::this_thread::yield();
  }
}

/// A connection of a device of `transport` to itself, ready at both ends.
inline void connect_to_itself(Transport& transport, std::unique_ptr<SendConnection>& sender,
                              std::unique_ptr<ReceiveConnection>& receiver, int device = 0) {
  const auto listener = transport.listen(device);
  const auto connector = transport.connect(device, listener->handle());
  until([&] {
    if (!sender) sender = connector->poll();
    if (!receiver) receiver = listener->accept();
    return sender && receiver;
  });
  until([&] {
    const bool one = sender->ready();
    return receiver->ready() && one;
  });
}

}  // namespace ropewalk::transport::messaging::testing
