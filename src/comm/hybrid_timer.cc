#include "comm/hybrid_timer.h"

#include "executor/block/launch.h"

namespace ropewalk::comm {
namespace {

// From one stamp to another, less than 39 hours apart.
double seconds_between(std::uint64_t from, std::uint64_t to) noexcept {
  constexpr std::uint64_t kMask = executor::LaunchStamps::kTimeMask;
  constexpr std::uint64_t kSign = (kMask + 1) / 2;
  constexpr double kNanosecond = 1e-9;
  const std::uint64_t later = (to - from) & kMask;
  const auto signed_ns = static_cast<std::int64_t>(later & kSign ? later | ~kMask : later);
  return static_cast<double>(signed_ns) * kNanosecond;
}

}  // namespace

bool HybridTimer::poll() {
  while (!followed_.empty()) {
    const Followed& oldest = followed_.front();
    const trace::StampRange& range = oldest.range;
    const std::uint32_t direct_blocks = range.blocks - oldest.host_blocks;
    const trace::StampedTimes direct = times_.read(range.part(0, direct_blocks));
    const trace::StampedTimes host = times_.read(range.part(direct_blocks, oldest.host_blocks));
    if (direct.end == 0 || host.end == 0) {
      if (!times_.about_to_be_reused(range)) break;
      // Its memory may have been given to another launch since.
      followed_.pop_front();
      continue;
    }
    tune::HybridTimes times = oldest.known;
    followed_.pop_front();
    times.host_later_seconds = seconds_between(direct.end, host.end);
    // Of the class that was done last; blocks of a launch begin together.
    const trace::StampedTimes& last = times.host_later_seconds > 0 ? host : direct;
    times.seconds = seconds_between(last.begin, last.end);
    timed_(times);
  }
  return followed_.size() < kMostFollowed;
}

void HybridTimer::follow(const trace::StampRange& range, std::uint32_t host_blocks,
                         const tune::HybridTimes& known) {
  followed_.push_back({range, host_blocks, known});
}

}  // namespace ropewalk::comm
