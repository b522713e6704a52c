// When the operations of one rank began and ended on its GPU, as the blocks of their launches note
// it in memory of the host (executor/block/launch.h). Nothing of it takes a launch, an event or a
// call of CUDA, so any thread reads it while kernels run or hang.
//
// The GPU's clock is brought to the host's by readings of both at once, when the rank gets its GPU
// and when it leaves. Between them the clocks drift; what is certain in any case corrects them: an
// operation starts after its launch, and has ended before its end is seen.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/mutex.h"
#include "executor/block/launch.h"

namespace ropewalk::trace {

/// The blocks of an operation in the memory of DeviceTimes. None: it is not noted.
struct StampRange {
  std::uint32_t first = 0;   ///< block, counted over all launches, modulo 2^32
  std::uint16_t blocks = 0;  ///< 0: none
  std::uint16_t launch = 0;  ///< as LaunchStamps has it

  [[nodiscard]] std::uint64_t packed() const noexcept {
    return std::uint64_t{first} << 32U | std::uint64_t{blocks} << 16U | launch;
  }
  static StampRange unpacked(std::uint64_t word) noexcept {
    return {static_cast<std::uint32_t>(word >> 32U), static_cast<std::uint16_t>(word >> 16U),
            static_cast<std::uint16_t>(word)};
  }
  /// The part of some of its blocks.
  [[nodiscard]] StampRange part(std::uint32_t from, std::uint32_t number) const noexcept {
    return {first + from, static_cast<std::uint16_t>(number), launch};
  }
};

/// Times of an operation on its GPU's clock, as stamps have them.
struct StampedTimes {
  std::uint64_t begin = 0;  ///< of the first block; 0: none has begun
  std::uint64_t end = 0;    ///< of the last one; 0: not all have ended
};

/// Threads: one at a time gives ranges; any thread reads, at any time.
class DeviceTimes {
 public:
  /// @param memory  two words for each block: of zeros, which the GPU sees at the same address.
  /// Their number is a power of two, at least 4 times the blocks of the largest launch. It outlives
  /// this
  explicit DeviceTimes(std::span<std::uint64_t> memory);

  /// Of the next launch, of `blocks` blocks from number 0 on.
  StampRange next(std::uint32_t blocks) noexcept;
  /// What that launch gets. The memory of a launch lies in one piece.
  [[nodiscard]] executor::LaunchStamps stamps(const StampRange& range) const noexcept;
  /// What its blocks have noted so far. Zeros where another launch has the memory now.
  [[nodiscard]] StampedTimes read(const StampRange& range) const noexcept;
  /// The memory of this one will be another's with the next launch or soon after.
  [[nodiscard]] bool about_to_be_reused(const StampRange& range) const noexcept {
    return next_ - range.first > num_blocks_ / 2;
  }

  /// Both clocks at one moment.
  struct Reading {
    std::uint64_t device_ns = 0;
    std::uint64_t ticks = 0;
  };
  void calibrate(const Reading& reading);
  /// The first one and the last one; nothing before calibrate().
  [[nodiscard]] std::optional<std::pair<Reading, Reading>> readings() const;

 private:
  std::uint64_t* words_ = nullptr;
  std::uint32_t num_blocks_ = 0;
  std::uint32_t next_ = 0;
  std::uint16_t launch_ = 0;
  mutable Mutex mutex_;
  std::optional<Reading> first_ RW_GUARDED_BY(mutex_);
  Reading last_ RW_GUARDED_BY(mutex_);
};

/// One operation's times, for DeviceClock.
struct ClockedTimes {
  std::int64_t scheduled_ns = 0;  ///< CLOCK_REALTIME, before its launch
  StampedTimes stamped;
};

/// Brings stamps to CLOCK_REALTIME.
class DeviceClock {
 public:
  struct Reading {
    std::uint64_t device_ns = 0;
    std::int64_t realtime_ns = 0;
  };
  /// By two readings, which may be the same; and by what is certain of `all` at `now_ns`.
  DeviceClock(const Reading& first, const Reading& last, std::span<const ClockedTimes> all,
              std::int64_t now_ns);

  /// @param near_ns  within 39 hours of it
  [[nodiscard]] std::int64_t realtime_ns(std::uint64_t stamp, std::int64_t near_ns) const noexcept;

 private:
  [[nodiscard]] std::int64_t read(std::uint64_t stamp, std::int64_t near_ns) const noexcept;

  Reading last_;
  double rate_ = 1;  // of the host's clock to the GPU's
  std::int64_t shift_ = 0;
};

}  // namespace ropewalk::trace
