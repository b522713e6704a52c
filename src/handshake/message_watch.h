// Ends the waits of a rank's streams around messages by copy engines (copied_messages.h) that will
// not end by themselves, as HandshakeWatch does those around collectives: a thread looks every few
// milliseconds at the words in the host's memory, and calls no function of CUDA.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "executor/block/launch.h"
#include "handshake/message_words.h"
#include "handshake/watch_thread.h"

namespace ropewalk::handshake {

/// Threads: any. Destroyed when the streams wait for nothing, nor will.
class MessageWatch {
 public:
  /// `control` outlives it.
  MessageWatch(const MessageWords& words, executor::Control& control, int rank);

  /// A wait may last so long; zero is for ever.
  void set_timeout(std::chrono::nanoseconds limit) noexcept { thread_.set_timeout(limit); }

 private:
  using Clock = WatchThread::Clock;
  // A message that has begun, as it was last seen.
  struct Seen {
    std::uint64_t began = 0;
    Clock::time_point since;
  };
  // As WatchThread::Look.
  bool look(Clock::time_point now, std::chrono::nanoseconds limit);
  bool look(int peer, MessageEnd end, Clock::time_point now, std::chrono::nanoseconds limit);

  const MessageWords words_;
  executor::Control& control_;
  const int rank_;
  std::vector<std::array<Seen, 2>> seen_;  // by peer
  WatchThread thread_;                     // last: it uses the others
};

}  // namespace ropewalk::handshake
