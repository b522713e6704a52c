// Ends the waits of a rank's streams around messages by copy engines (copied_messages.h) that will
// not end by themselves, as HandshakeWatch does those around collectives: a thread looks every few
// milliseconds at the words in the host's memory, and calls no function of CUDA.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "executor/block/launch.h"
#include "handshake/message_words.h"

namespace ropewalk::handshake {

/// Threads: any.
class MessageWatch {
 public:
  /// `control` outlives it.
  MessageWatch(const MessageWords& words, executor::Control& control, int rank);
  /// @pre the streams wait for nothing, nor will
  ~MessageWatch();
  MessageWatch(const MessageWatch&) = delete;
  MessageWatch& operator=(const MessageWatch&) = delete;

  /// A wait may last so long; zero is for ever.
  void set_timeout(std::chrono::nanoseconds limit) noexcept { timeout_ns_ = limit.count(); }

 private:
  using Clock = std::chrono::steady_clock;
  // A message that has begun, as it was last seen.
  struct Seen {
    std::uint64_t began = 0;
    Clock::time_point since;
  };
  void run();
  // @return whether to look again at once
  bool look(Clock::time_point now);
  bool look(int peer, MessageEnd end, Clock::time_point now);

  const MessageWords words_;
  executor::Control& control_;
  const int rank_;
  std::atomic<std::int64_t> timeout_ns_{0};
  std::atomic<bool> ends_{false};
  std::vector<std::array<Seen, 2>> seen_;  // by peer
  std::thread thread_;                     // last: it uses the others
};

}  // namespace ropewalk::handshake
