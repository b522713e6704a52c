// Until when a wait may last.
#pragma once

#include <chrono>

#include "core/settings.h"

namespace ropewalk {

using Deadline = std::chrono::steady_clock::time_point;
inline constexpr Deadline kNoDeadline = Deadline::max();

/// Now plus `duration`; zero is for ever.
inline Deadline deadline_after(std::chrono::nanoseconds duration) {
  if (duration == std::chrono::nanoseconds::zero()) return kNoDeadline;
  const auto now = std::chrono::steady_clock::now();
  return duration > kNoDeadline - now ? kNoDeadline : now + duration;
}

/// Now plus the setting TIMEOUT.
inline Deadline deadline_of(const Config& config) {
  return deadline_after(config.duration(Setting::kTimeout));
}

}  // namespace ropewalk
