#include "trace/device_times.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace ropewalk::trace {
namespace {

using executor::LaunchStamps;

// Closer readings tell nothing of how the clocks drift.
constexpr std::int64_t kShortestDriftNs = 1'000'000'000;

std::uint64_t load(const std::uint64_t* word) noexcept {
  // Written by the GPU, or by threads that stand in for it.
  return std::atomic_ref(*const_cast<std::uint64_t*>(word)).load(std::memory_order_acquire);
}

}  // namespace

DeviceTimes::DeviceTimes(std::span<std::uint64_t> memory)
    : words_(memory.data()), num_blocks_(static_cast<std::uint32_t>(memory.size() / 2)) {
  RW_ASSERT(std::has_single_bit(num_blocks_) && memory.size() == std::size_t{2} * num_blocks_);
}

StampRange DeviceTimes::next(std::uint32_t blocks) noexcept {
  if (blocks == 0 || blocks > num_blocks_ / 4) return {};
  // In one piece: what is left before the end of the memory is skipped.
  const std::uint32_t left = num_blocks_ - (next_ & (num_blocks_ - 1));
  if (left < blocks) next_ += left;
  if (++launch_ == 0) ++launch_;  // zeros are no stamps
  const StampRange range{next_, static_cast<std::uint16_t>(blocks), launch_};
  next_ += blocks;
  return range;
}

LaunchStamps DeviceTimes::stamps(const StampRange& range) const noexcept {
  LaunchStamps stamps;
  if (range.blocks == 0) return stamps;
  stamps.words = words_ + std::size_t{2} * (range.first & (num_blocks_ - 1));
  stamps.launch = range.launch;
  return stamps;
}

StampedTimes DeviceTimes::read(const StampRange& range) const noexcept {
  StampedTimes times;
  std::uint32_t ended = 0;
  const std::uint64_t* words = words_ + std::size_t{2} * (range.first & (num_blocks_ - 1));
  for (std::uint32_t b = 0; b < range.blocks; ++b) {
    const auto noted = [&](std::size_t word) {
      const std::uint64_t stamp = load(words + word);
      const bool own = stamp >> LaunchStamps::kTimeBits == range.launch;
      return own ? std::max<std::uint64_t>(stamp & LaunchStamps::kTimeMask, 1) : 0;
    };
    // The end first: a block that is replayed meanwhile begins anew.
    const std::uint64_t end = noted(std::size_t{2} * b + 1);
    const std::uint64_t begin = noted(std::size_t{2} * b);
    if (begin != 0) times.begin = times.begin == 0 ? begin : std::min(times.begin, begin);
    if (end == 0) continue;
    ++ended;
    times.end = std::max(times.end, end);
  }
  // Of a graph that is replayed: the end is of an earlier turn.
  if (ended < range.blocks || times.end < times.begin) times.end = 0;
  return times;
}

void DeviceTimes::calibrate(const Reading& reading) {
  const Lock lock(mutex_);
  if (!first_.has_value()) first_ = reading;
  last_ = reading;
}

std::optional<std::pair<DeviceTimes::Reading, DeviceTimes::Reading>> DeviceTimes::readings() const {
  const Lock lock(mutex_);
  if (!first_.has_value()) return std::nullopt;
  return std::pair{*first_, last_};
}

DeviceClock::DeviceClock(const Reading& first, const Reading& last,
                         std::span<const ClockedTimes> all, std::int64_t now_ns)
    : last_(last) {
  const std::int64_t passed = last.realtime_ns - first.realtime_ns;
  if (passed >= kShortestDriftNs && last.device_ns > first.device_ns) {
    rate_ = static_cast<double>(passed) / static_cast<double>(last.device_ns - first.device_ns);
  }
  // Stamps are at least this much later, and at most that much, than the readings say.
  std::int64_t least = std::numeric_limits<std::int64_t>::min();
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (const ClockedTimes& times : all) {
    if (times.stamped.begin == 0) continue;
    const std::int64_t begin = read(times.stamped.begin, times.scheduled_ns);
    least = std::max(least, times.scheduled_ns - begin);
    const std::uint64_t seen = times.stamped.end != 0 ? times.stamped.end : times.stamped.begin;
    most = std::min(most, now_ns - read(seen, times.scheduled_ns));
  }
  shift_ = std::max(std::min<std::int64_t>(0, most), least);
}

std::int64_t DeviceClock::read(std::uint64_t stamp, std::int64_t near_ns) const noexcept {
  // All bits of the GPU's clock when the host's was `near_ns`, within some seconds.
  const auto expected = last_.device_ns + static_cast<std::uint64_t>(near_ns - last_.realtime_ns);
  constexpr unsigned kUnknownBits = 64 - LaunchStamps::kTimeBits;
  const auto beyond = static_cast<std::int64_t>((stamp - expected) << kUnknownBits) >> kUnknownBits;
  const auto since =
      static_cast<std::int64_t>(expected + static_cast<std::uint64_t>(beyond) - last_.device_ns);
  return last_.realtime_ns + std::llround(static_cast<double>(since) * rate_);
}

std::int64_t DeviceClock::realtime_ns(std::uint64_t stamp, std::int64_t near_ns) const noexcept {
  return read(stamp, near_ns) + shift_;
}

}  // namespace ropewalk::trace
