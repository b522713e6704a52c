// Ends the waits of a rank's stream around copies (stream_handshake.h) that will not end by
// themselves: memory operations of streams have no deadline, and nobody but another rank's stream
// ends them.
//
// A thread looks every few milliseconds at the words, which lie in the host's memory, and calls no
// function of CUDA. It does what a kernel that waits does for itself: it writes down why the rank
// stops (executor/block/launch.h, Control), at the deadline and when another rank made a different
// call; and where the rank is to stop, for these reasons or since the host says so, it stores what
// the stream waits for.
#pragma once

#include <chrono>
#include <cstdint>

#include "executor/block/launch.h"
#include "handshake/handshake_words.h"
#include "handshake/watch_thread.h"

namespace ropewalk::handshake {

/// Threads: any. Destroyed when the stream waits for nothing, nor will.
class HandshakeWatch {
 public:
  /// `control` outlives it.
  HandshakeWatch(const HandshakeWords& words, executor::Control& control, int rank,
                 bool check_tags);

  /// A wait may last so long; zero is for ever. Holds for graphs, too, that were captured before.
  void set_timeout(std::chrono::nanoseconds limit) noexcept { thread_.set_timeout(limit); }

 private:
  using Clock = WatchThread::Clock;
  // As WatchThread::Look.
  bool look(Clock::time_point now, std::chrono::nanoseconds limit);
  void look_for_difference(const HandshakeState& state, const HandshakeCall& own);
  [[nodiscard]] bool still_at(const HandshakeState& state) const noexcept;
  void release(const HandshakeState& state) noexcept;

  const HandshakeWords words_;
  executor::Control& control_;
  const int rank_;
  const bool check_tags_;
  Clock::time_point since_{};    // of the wait that was seen
  Clock::time_point compare_{};  // when to compare its call with the others' next
  WatchThread thread_;           // last: it uses the others
};

}  // namespace ropewalk::handshake
