// A stream of messages of random sizes through a connection, of which each end looks at every byte:
// also that nothing is written after a receive was finished, and nothing read after a send was.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "transport/rails/rails.h"
#include "transport/transport.h"

namespace ropewalk::transport::rails::testing {

using Clock = std::chrono::steady_clock;

inline constexpr std::uint32_t kStreamTag = 4;
inline constexpr std::uint32_t kLastTag = 5;

struct StreamShape {
  std::uint64_t seed = 1;
  std::size_t most_bytes = 1 << 20;
  std::size_t least_bytes = 0;  ///< with most_bytes equal: all of one size
  std::size_t under_way = 4;
  /// Nothing moves for longer: a hang. Never a measure of speed.
  std::chrono::seconds patience{60};

  [[nodiscard]] std::size_t bytes_of(std::uint64_t number) const {
    if (least_bytes == most_bytes) return most_bytes;
    const std::uint64_t mixed = mix(number);
    // Short, middling and long ones alike.
    const std::size_t most = (mixed & 3) == 0 ? 200 : (mixed & 3) == 1 ? 70'000 : most_bytes;
    return static_cast<std::size_t>((mixed >> 8) % (most + 1));
  }
  [[nodiscard]] std::uint64_t mix(std::uint64_t number) const {
    std::uint64_t mixed = number * 0x9e3779b97f4a7c15U + seed;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9U;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebU;
    return mixed ^ mixed >> 31;
  }
  /// Each word tells the message and its offset.
  void fill(std::vector<std::byte>& memory, std::uint64_t number, std::size_t bytes) const {
    std::uint64_t word = mix(number ^ 0x5555);
    std::byte* const data = memory.data();
    for (std::size_t at = 0; at < bytes; at += 8, word += 0x0101010101010101U) {
      std::memcpy(data + at, &word, bytes - at < 8 ? bytes - at : 8);
    }
  }
  [[nodiscard]] bool is_right(const std::vector<std::byte>& memory, std::uint64_t number,
                              std::size_t bytes) const {
    std::uint64_t word = mix(number ^ 0x5555);
    const std::byte* const data = memory.data();
    for (std::size_t at = 0; at < bytes; at += 8, word += 0x0101010101010101U) {
      if (std::memcmp(data + at, &word, bytes - at < 8 ? bytes - at : 8) != 0) return false;
    }
    return true;
  }
};

/// Throws when `step` has been false for the patience. `what` is asked then.
inline void wait_for(const StreamShape& shape, const std::function<std::string()>& what,
                     const std::function<bool()>& step) {
  const Clock::time_point deadline = Clock::now() + shape.patience;
  for (int round = 0; !step(); ++round) {
    if (round < 20) continue;
    if (Clock::now() > deadline) throw std::runtime_error("hangs: " + what());
    std::this_thread::yield();
  }
}
inline void wait_for(const StreamShape& shape, const char* what,
                     const std::function<bool()>& step) {
  wait_for(
      shape, [what] { return std::string(what); }, step);
}

/// Sends until `stop`; before the last messages it says how many there will have been, so that the
/// receiver posts no receive too many. @return how many
inline std::uint64_t send_stream(SendConnection& sender, const StreamShape& shape,
                                 const std::function<bool()>& stop) {
  struct Message {
    std::vector<std::byte> memory;
    std::unique_ptr<Request> request;
  };
  std::deque<Message> flying;
  std::vector<std::vector<std::byte>> spare;
  std::uint64_t number = 0;
  const auto finish_one = [&] {
    Message& first = flying.front();
    wait_for(
        shape, [&] { return "a send: " + sender.describe(); },
        [&] { return first.request->test().has_value(); });
    first.request.reset();
    // Whoever still reads it sends what is wrong.
    std::memset(first.memory.data(), 0xdb, first.memory.size());
    spare.push_back(std::move(first.memory));
    flying.pop_front();
  };
  std::uint64_t total = 0;
  std::unique_ptr<Request> last;
  while (total == 0 || number < total) {
    if (total == 0 && stop()) {
      total = number + shape.under_way;
      wait_for(shape, "starting to say how many", [&] {
        last = sender.send(&total, sizeof total, kLastTag, nullptr);
        return last != nullptr;
      });
    }
    if (flying.size() == shape.under_way) finish_one();
    Message message;
    if (spare.empty()) {
      message.memory.resize(shape.most_bytes + 8);
    } else {
      message.memory = std::move(spare.back());
      spare.pop_back();
    }
    const std::size_t bytes = shape.bytes_of(number);
    shape.fill(message.memory, number, bytes);
    wait_for(shape, "starting a send", [&] {
      message.request = sender.send(message.memory.data(), bytes, kStreamTag, nullptr);
      return message.request != nullptr;
    });
    flying.push_back(std::move(message));
    ++number;
  }
  while (!flying.empty()) finish_one();
  wait_for(shape, "saying how many", [&] { return last->test().has_value(); });
  return number;
}

struct Received {
  std::uint64_t messages = 0;
  std::uint64_t wrong = 0;  ///< sizes or bytes
  std::uint64_t late = 0;   ///< bytes changed after the receive was finished
  std::uint64_t bytes = 0;
};

/// Receives until the sender's last word. `arrived`: the bytes of each message, as it comes.
inline Received receive_stream(ReceiveConnection& receiver, const StreamShape& shape,
                               const std::function<void(std::size_t)>& arrived = {}) {
  constexpr auto kCanary = std::byte{0x7e};
  struct Message {
    std::vector<std::byte> memory;
    std::unique_ptr<Request> request;
  };
  std::deque<Message> flying;
  std::deque<std::vector<std::byte>> spare;  // the longest unused first
  Received all;
  std::uint64_t posted = 0;
  std::uint64_t last = 0;
  const ReceiveBuffer last_buffer{&last, sizeof last, kLastTag, nullptr};
  std::unique_ptr<Request> end;
  wait_for(shape, "posting the last receive", [&] {
    end = receiver.receive({&last_buffer, 1});
    return end != nullptr;
  });
  const auto untouched = [&](const std::vector<std::byte>& memory) {
    return memory[0] == kCanary &&
           std::memcmp(memory.data(), memory.data() + 1, memory.size() - 1) == 0;
  };
  bool ended = false;
  for (;;) {
    if (!ended && end->test()) ended = true;
    while (flying.size() < shape.under_way && (!ended || posted < last)) {
      ++posted;
      Message message;
      if (spare.size() < 4) {
        message.memory.resize(shape.most_bytes + 8);
      } else {
        message.memory = std::move(spare.front());
        spare.pop_front();
        if (!untouched(message.memory)) ++all.late;
      }
      std::memset(message.memory.data(), static_cast<int>(kCanary), message.memory.size());
      const ReceiveBuffer buffer{message.memory.data(), shape.most_bytes, kStreamTag, nullptr};
      wait_for(shape, "posting a receive", [&] {
        message.request = receiver.receive({&buffer, 1});
        return message.request != nullptr;
      });
      flying.push_back(std::move(message));
    }
    std::optional<std::size_t> got;
    if (flying.empty()) break;
    wait_for(
        shape, [&] { return "a receive: " + receiver.describe(); },
        [&] {
          got = flying.front().request->test();
          return got.has_value();
        });
    Message message = std::move(flying.front());
    flying.pop_front();
    message.request.reset();
    const std::uint64_t number = all.messages++;
    const std::size_t bytes = shape.bytes_of(number);
    if (*got != bytes || !shape.is_right(message.memory, number, bytes)) ++all.wrong;
    all.bytes += *got;
    if (arrived) arrived(*got);
    std::memset(message.memory.data(), static_cast<int>(kCanary), message.memory.size());
    spare.push_back(std::move(message.memory));
  }
  for (const std::vector<std::byte>& memory : spare) all.late += untouched(memory) ? 0 : 1;
  return all;
}

/// A connection between two ends, each with a transport of its own.
struct Joined {
  std::unique_ptr<SendConnection> sender;
  std::unique_ptr<ReceiveConnection> receiver;
};

}  // namespace ropewalk::transport::rails::testing
