// A clock that takes some nanoseconds to read: the processor's time-stamp counter where it counts
// at one rate (x86-64 with an invariant one), else CLOCK_MONOTONIC.
#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace ropewalk {

namespace detail {
/// Whether the time-stamp counter is invariant (CPUID 80000007H, EDX bit 8).
extern const bool kInvariantTsc;
std::uint64_t monotonic_ticks() noexcept;
}  // namespace detail

/// Of a unit that TickScale knows; never goes back in one thread.
[[nodiscard]] inline std::uint64_t ticks() noexcept {
#if defined(__x86_64__)
  if (detail::kInvariantTsc) [[likely]]
    return __rdtsc();
#endif
  return detail::monotonic_ticks();
}

/// Converts ticks to CLOCK_REALTIME, by two readings of both clocks. Where that clock is set
/// between them, times before are of the new setting.
class TickScale {
 public:
  /// Reads both clocks for the first time.
  TickScale() noexcept;
  /// Reads them again: after less than 10 ms it waits for that long. Threads: one at a time.
  void update() noexcept;
  /// Nanoseconds since 1970. @pre update()
  [[nodiscard]] std::int64_t realtime_ns(std::uint64_t at) const noexcept;

 private:
  struct Reading {
    std::uint64_t ticks = 0;
    std::int64_t steady_ns = 0;
    std::int64_t realtime_ns = 0;
  };
  static Reading read() noexcept;

  Reading first_;
  Reading last_;
  double ns_per_tick_ = 1;
};

}  // namespace ropewalk
