#include "diagnose/probe/self_messages.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/units.h"
#include "diagnose/probe/probe.h"
#include "diagnose/probe/warnings.h"

namespace ropewalk::diagnose::probe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kMessageLimit{10};
constexpr std::size_t kMessageBytes = std::size_t{16} << 20;
constexpr int kLargeMessages = 8;
constexpr int kSmallMessages = 300;

template <typename Ready>
void wait(const char* what, Ready&& ready) {
  const Clock::time_point begin = Clock::now();
  while (!ready()) {
    if (Clock::now() - begin > kMessageLimit) throw Error(Errc::kTimeout, "{}: not in 10 s", what);
    sched_yield();
  }
}

// Both ends of a connection of this process with itself.
class SelfConnection {
 public:
  SelfConnection(transport::Transport& over, int device) {
    listener_ = over.listen(device);
    connector_ = over.connect(device, listener_->handle());
    wait("connecting", [&] {
      if (sender_ == nullptr) sender_ = connector_->poll();
      if (receiver_ == nullptr) receiver_ = listener_->accept();
      return sender_ != nullptr && receiver_ != nullptr;
    });
  }

  void move(std::vector<std::byte>& from, std::vector<std::byte>& to, std::size_t bytes) {
    std::unique_ptr<transport::Request> sent;
    std::unique_ptr<transport::Request> received;
    bool send_done = false;
    bool receive_done = false;
    const transport::ReceiveBuffer buffer{to.data(), bytes, 0, to_registration(to)};
    wait("a message", [&] {
      if (received == nullptr) received = receiver_->receive(std::span(&buffer, 1));
      if (sent == nullptr) sent = sender_->send(from.data(), bytes, 0, from_registration(from));
      if (sent != nullptr && !send_done) send_done = sent->test().has_value();
      if (received != nullptr && !receive_done) receive_done = received->test().has_value();
      return send_done && receive_done;
    });
  }

 private:
  transport::Registration* from_registration(std::vector<std::byte>& memory) {
    if (from_ == nullptr) {
      from_ = sender_->register_memory(memory.data(), memory.size(), transport::MemoryKind::kHost);
    }
    return from_.get();
  }
  transport::Registration* to_registration(std::vector<std::byte>& memory) {
    if (to_ == nullptr) {
      to_ = receiver_->register_memory(memory.data(), memory.size(), transport::MemoryKind::kHost);
    }
    return to_.get();
  }

  std::unique_ptr<transport::Listener> listener_;
  std::unique_ptr<transport::Connector> connector_;
  std::unique_ptr<transport::SendConnection> sender_;
  std::unique_ptr<transport::ReceiveConnection> receiver_;
  std::unique_ptr<transport::Registration> from_;
  std::unique_ptr<transport::Registration> to_;
};

}  // namespace

std::string described(const transport::DeviceProperties& properties) {
  std::string words = fmt::format("{:.0f} Gbit/s", properties.speed_mbps / 1000);
  if (!properties.pci_path.empty()) {
    words += ", PCI " + std::filesystem::path(properties.pci_path).filename().string();
  }
  if (properties.guid != 0) words += fmt::format(", GUID {:012x}", properties.guid);
  return words;
}

Check self_messages(transport::Transport& over, int device, const std::string& found,
                    const std::string& cause, const std::string& no_answer) {
  Check check{.what = "messages"};
  const HeardWarnings warnings;
  try {
    std::vector<std::byte> from(kMessageBytes);
    std::vector<std::byte> to(kMessageBytes);
    for (std::size_t i = 0; i < kMessageBytes; ++i)
      from[i] = static_cast<std::byte>(i * 7 + (i >> 9));
    SelfConnection connection(over, device);
    connection.move(from, to, kMessageBytes);
    if (from != to) {
      check.outcome = Outcome::kFailed;
      check.found =
          fmt::format("a message of {} came with other bytes", format_bytes(kMessageBytes));
      check.cause = "faulty memory or a faulty driver";
      return check;
    }
    // The best time, so that other load on this machine is not judged.
    double gbps = 0;
    for (int i = 0; i < kLargeMessages; ++i) {
      const Clock::time_point begin = Clock::now();
      connection.move(from, to, kMessageBytes);
      gbps = std::max(gbps, static_cast<double>(kMessageBytes) / seconds_since(begin) / 1e9);
    }
    check.gbps = gbps;
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < kSmallMessages; ++i) connection.move(from, to, 8);
    check.latency_us = seconds_since(begin) / kSmallMessages * 1e6;
    check.found = found;
    // Warnings tell why a slower path was chosen.
    check.cause = warnings.text();
    if (!check.cause.empty()) {
      check.outcome = Outcome::kDegraded;
      check.found += ", but not as it should";
    }
  } catch (const Error& error) {
    check.outcome = Outcome::kFailed;
    check.found = error.what();
    check.cause = warnings.text();
    if (check.cause.empty()) check.cause = error.code() == Errc::kTimeout ? no_answer : cause;
  }
  return check;
}

}  // namespace ropewalk::diagnose::probe
