// Notices a connection on which nothing moves.
#pragma once

#include <chrono>
#include <optional>

namespace ropewalk::netplugin {

/// NCCL waits as long as a rank computes, so a stall is not an error: it is only worth a line in
/// the log, which says where a job that hangs stands. Threads: one at a time.
class StallWatch {
 public:
  using Clock = std::chrono::steady_clock;
  using Now = Clock::time_point (*)();
  static constexpr std::chrono::seconds kAfter{10};
  /// NCCL polls millions of times a second: every Nth unsuccessful poll reads the clock.
  static constexpr unsigned kPollsPerLook = 4096;

  explicit StallWatch(Now now) noexcept : now_(now) {}

  /// A message was started, or has arrived.
  void moved() noexcept {
    since_.reset();
    told_ = false;
  }

  /// Called after an unsuccessful poll.
  /// @return true if nothing has moved for kAfter: once, until something moves
  [[nodiscard]] bool begins() noexcept {
    if (++polls_ % kPollsPerLook != 0 || told_) return false;
    const Clock::time_point now = now_();
    if (!since_) since_ = now;
    told_ = now - *since_ >= kAfter;
    return told_;
  }

 private:
  Now now_;
  std::optional<Clock::time_point> since_;
  unsigned polls_ = 0;
  bool told_ = false;
};

}  // namespace ropewalk::netplugin
