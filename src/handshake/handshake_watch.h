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

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>

#include "executor/block/launch.h"
#include "handshake/handshake_words.h"

namespace ropewalk::handshake {

/// Threads: any.
class HandshakeWatch {
 public:
  /// `control` outlives it.
  HandshakeWatch(const HandshakeWords& words, executor::Control& control, int rank,
                 bool check_tags);
  /// @pre the stream waits for nothing, nor will
  ~HandshakeWatch();
  HandshakeWatch(const HandshakeWatch&) = delete;
  HandshakeWatch& operator=(const HandshakeWatch&) = delete;

  /// A wait may last so long; zero is for ever. Holds for graphs, too, that were captured before.
  void set_timeout(std::chrono::nanoseconds limit) noexcept { timeout_ns_ = limit.count(); }

 private:
  using Clock = std::chrono::steady_clock;
  void run();
  // @return whether to look again at once
  bool look(Clock::time_point now);
  void look_for_difference(const HandshakeState& state, const HandshakeCall& own);
  [[nodiscard]] bool still_at(const HandshakeState& state) const noexcept;
  void release(const HandshakeState& state) noexcept;

  const HandshakeWords words_;
  executor::Control& control_;
  const int rank_;
  const bool check_tags_;
  std::atomic<std::int64_t> timeout_ns_{0};
  std::atomic<bool> ends_{false};
  Clock::time_point since_{};    // of the wait that was seen
  Clock::time_point compare_{};  // when to compare its call with the others' next
  std::thread thread_;           // last: it uses the others
};

}  // namespace ropewalk::handshake
