// When calls were made that take less time than reading the clock.
//
// A reading of the time-stamp counter takes 10 to 20 ns, and the processor begins nothing behind it
// meanwhile: of calls that find their data there, one after another, it let cache lines travel one
// at a time, and took half of the time. So while such calls follow each other closely, the clock is
// read at every eighth alone, and the others have the last reading. A later reading shows whether
// they did follow closely; if not, their times are not known.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/ticks.h"

namespace ropewalk::trace {

/// Counts calls by number, which rise. Threads: one at a time.
class ShortCallClock {
 public:
  /// Whether call `number` needs no reading of its own: last() serves.
  [[nodiscard]] bool spares(std::uint64_t number) const noexcept { return number < next_read_; }
  [[nodiscard]] std::uint64_t last() const noexcept { return last_; }
  /// The number of the call at which the clock was last read.
  /// Any thread, any time.
  [[nodiscard]] std::uint64_t read_at() const noexcept {
    return number_.load(std::memory_order_relaxed);
  }

  /// The clock was read for call `number`, with this result.
  /// @param counts  whether the calls after it may be spared readings
  /// @return false when those since read_at() did not follow each other closely
  bool read(std::uint64_t number, std::uint64_t now, bool counts) noexcept {
    const bool closely = now - last_ <= kCloseTicks * (number - read_at());
    close_ = closely && counts ? close_ + 1 : 0;
    last_ = now;
    number_.store(number, std::memory_order_relaxed);
    next_read_ = number + 1 + (close_ >= kEnough ? kSpared : 0);
    return closely;
  }

 private:
  // Between two calls: 1 to 2 us, by processor.
  static constexpr std::uint64_t kCloseTicks = 4096;
  static constexpr std::uint64_t kSpared = 7;
  // Readings in a row before calls are spared theirs.
  static constexpr std::uint64_t kEnough = 8;

  std::uint64_t last_ = 0;
  std::atomic<std::uint64_t> number_{0};
  std::uint64_t next_read_ = 0;
  std::uint64_t close_ = 0;
};

}  // namespace ropewalk::trace
