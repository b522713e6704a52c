#include "core/ticks.h"

#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ropewalk {
namespace {

constexpr std::int64_t kShortestScaleNs = 10'000'000;
// An interrupt between the readings of the clocks spoils a pair: the closest of some counts.
constexpr int kReadings = 5;

bool has_invariant_tsc() noexcept {
#if defined(__x86_64__)
  constexpr unsigned kPowerLeaf = 0x80000007;
  constexpr unsigned kInvariantBit = 1U << 8U;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(kPowerLeaf, &a, &b, &c, &d) != 0 && (d & kInvariantBit) != 0;
#else
  return false;
#endif
}

template <typename Clock>
std::int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

}  // namespace

namespace detail {

const bool kInvariantTsc = has_invariant_tsc();

std::uint64_t monotonic_ticks() noexcept {
  return static_cast<std::uint64_t>(now_ns<std::chrono::steady_clock>());
}

}  // namespace detail

TickScale::Reading TickScale::read() noexcept {
  Reading best;
  auto least = std::numeric_limits<std::uint64_t>::max();
  for (int i = 0; i < kReadings; ++i) {
    const std::uint64_t before = ticks();
    const auto steady = now_ns<std::chrono::steady_clock>();
    const auto realtime = now_ns<std::chrono::system_clock>();
    const std::uint64_t took = ticks() - before;
    if (took >= least) continue;
    least = took;
    best = {before + took / 2, steady, realtime};
  }
  return best;
}

TickScale::TickScale() noexcept : first_(read()), last_(first_) {}

void TickScale::update() noexcept {
  const auto elapsed = [this] { return now_ns<std::chrono::steady_clock>() - first_.steady_ns; };
  if (const std::int64_t early = kShortestScaleNs - elapsed(); early > 0) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(early));
  }
  last_ = read();
  const auto passed = static_cast<double>(last_.ticks - first_.ticks);
  if (passed > 0) ns_per_tick_ = static_cast<double>(last_.steady_ns - first_.steady_ns) / passed;
}

std::int64_t TickScale::realtime_ns(std::uint64_t at) const noexcept {
  // Signed: `at` may lie on either side.
  const auto distance = static_cast<std::int64_t>(at - last_.ticks);
  return last_.realtime_ns + std::llround(static_cast<double>(distance) * ns_per_tick_);
}

}  // namespace ropewalk
