// How a host thread spends the time while nothing moves: spin, then yield, then sleep; or, where
// all that it waits for is the system's (sockets), sleep until the system wakes it.
//
// A scheduler may put two ranks onto one core while others are idle, and leave them there for as
// long as each waits for the other. Then spinning only keeps the one from running that is waited
// for. So the first yield of a wait is timed, now and then: one that takes long has let another
// thread run. From then on waits yield at once, until several yields in a row came back at once.
#pragma once

#include <chrono>
#include <cstdint>

namespace ropewalk::executor {

/// Called by a waiting thread now and then; may throw to end the wait (abort, lost peer, deadline).
class WaitHook {
 public:
  virtual ~WaitHook() = default;
  /// At each turn of the wait. Cheap: checks one flag, drives network links.
  /// @return true when something moved
  virtual bool poll() = 0;
  /// At most every millisecond or so, with how long nothing has moved.
  virtual void stalled(std::chrono::nanoseconds since_progress) = 0;
  /// Sleeps until poll() may move something, or `at_most` has passed.
  /// @return false, at once, if it cannot know that
  virtual bool sleep(std::chrono::nanoseconds /*at_most*/) { return false; }
};

/// Threads: one per object.
class Waiter {
 public:
  struct Policy {
    /// Turns before the first yield and the first reading of the clock: a short wait, as for a
    /// cache line of a peer, must not pay for either. 0 if a turn is itself expensive, such as one
    /// that polls a socket.
    std::uint64_t bare_turns = 256;
    /// Spinning time before the first yield. 0 where ranks outnumber cores: a spinning rank would
    /// only keep the one it waits for from running.
    std::chrono::nanoseconds spin{50'000};
    /// Yielding time before the first sleep.
    std::chrono::nanoseconds yield{20'000'000};
    /// Longest sleep.
    std::chrono::nanoseconds sleep{1'000'000};
    /// Time before the hook is asked to sleep.
    std::chrono::nanoseconds hook_sleeps = std::chrono::nanoseconds::max();
  };

  Waiter(const Policy& policy, WaitHook& hook) : policy_(policy), hook_(hook) {}

  /// Nothing is ready: waits a little. `moves` is any number that changes when something moves.
  void idle(std::uint64_t moves);

  /// Turns that a wait may take before idle() is called for the first time.
  [[nodiscard]] std::uint64_t bare_turns() const noexcept {
    return crowded() ? 0 : policy_.bare_turns;
  }

  /// Starts a new wait: forgets how long the last one took.
  void restart() noexcept { turns_ = 0; }
  /// Starts one that has taken `turns` already, since `moves` changed.
  void restart(std::uint64_t turns, std::uint64_t moves) noexcept {
    turns_ = turns;
    last_moves_ = moves;
  }

 private:
  void pause_or_sleep(std::chrono::nanoseconds waited);
  [[nodiscard]] bool crowded() const noexcept { return yields_to_time_ > 0; }
  void timed_yield(std::chrono::steady_clock::time_point now);

  Policy policy_;
  WaitHook& hook_;
  int yields_to_time_ = 0;  // quick ones, until nobody else is taken to run on this core
  std::chrono::steady_clock::time_point last_timed_{};
  std::uint64_t turns_ = 0;
  std::uint64_t last_moves_ = ~std::uint64_t{0};
  std::chrono::steady_clock::time_point since_{};
  std::chrono::steady_clock::time_point last_stalled_{};
};

}  // namespace ropewalk::executor
