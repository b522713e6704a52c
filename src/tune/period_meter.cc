#include "tune/period_meter.h"

#include <algorithm>

namespace ropewalk::tune {
namespace {

// A rank runs ahead of the next one by what a link holds: slots, and some MiB in a transport.
constexpr std::size_t kLeastBytes = std::size_t{16} << 20U;
constexpr std::size_t kLeastCalls = 4;

}  // namespace

int PeriodMeter::calls_of(std::size_t bytes) noexcept {
  const std::size_t some = std::max<std::size_t>(1, bytes);
  return static_cast<int>(std::max(kLeastCalls, (kLeastBytes + some - 1) / some));
}

std::optional<double> PeriodMeter::begins(ChunkCode chunk, double seconds) noexcept {
  std::optional<double> period;
  if (chunk == chunk_ && begun_ == calls_) period = (seconds - start_) / calls_;
  if (chunk != chunk_ || period.has_value()) {
    chunk_ = chunk;
    begun_ = 0;
    start_ = seconds;
  }
  ++begun_;
  return period;
}

}  // namespace ropewalk::tune
