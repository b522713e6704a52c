// When it is time again for a look that costs much more than the polls around it.
#pragma once

#include <chrono>

namespace ropewalk {

/// Paced by the clock, since some callers poll a hundred times as often as others; and the clock is
/// read only once in a number of polls, since reading it takes longer than a poll. Threads: one at
/// a time.
class Pacer {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Pacer(Clock::duration period) : period_(period) {}

  /// To be called at each poll.
  /// @return whether a period has passed since it last returned true
  [[nodiscard]] bool due() {
    if (++polls_ % kPollsPerClock != 0) return false;
    const Clock::time_point now = Clock::now();
    if (now - last_ < period_) return false;
    last_ = now;
    return true;
  }

  /// Something moved: no look before another kPollsPerClock polls.
  void hold_off() noexcept { polls_ = 0; }

  /// The period begins now.
  void restart() {
    polls_ = 0;
    last_ = Clock::now();
  }

  /// When due() last returned true, or of restart().
  [[nodiscard]] Clock::time_point last() const noexcept { return last_; }

  static constexpr unsigned kPollsPerClock = 32;

 private:
  Clock::duration period_;
  Clock::time_point last_;
  unsigned polls_ = 0;
};

}  // namespace ropewalk
