#include "tune/hybrid_controller.h"

#include <algorithm>
#include <cmath>

namespace ropewalk::tune {
namespace {

constexpr double kMillion = 1e6;

}  // namespace

std::uint64_t HybridScale::packed() const noexcept {
  return static_cast<std::uint64_t>(std::llround(scale * kMillion)) << 1U | (one_way ? 1U : 0U);
}

HybridScale HybridScale::unpacked(std::uint64_t value) noexcept {
  return {(value & 1U) != 0, static_cast<double>(value >> 1U) / kMillion};
}

double HybridController::scale_of(const HybridTimes& times) const noexcept {
  HybridLinks links = links_;
  links.scale(times.one_way) = times.scale;
  // A call is never taken to be set-up alone.
  constexpr double kLeastMoving = 0.1;
  const double direct =
      times.hops * links.direct_hop + times.bytes * (1 - times.share) / links.direct_rate;
  const double setup = links.host_setup(times.hops, times.one_way, times.chunk_bytes);
  const double moving = std::max(direct + times.host_later_seconds - setup, kLeastMoving * direct);
  links.scale(times.one_way) = 1;
  const double scale = times.bytes * times.share / moving / links.host_rate_of(times.one_way);
  return std::clamp(scale, kLeastScale, kMostScale);
}

bool HybridController::slower(const Shortest& now, const Shortest& before) noexcept {
  return std::ranges::any_of(now, [&](const auto& each) {
    const auto found = before.find(each.first);
    return found != before.end() && each.second > kSlower * found->second;
  });
}

std::optional<double> HybridController::next_scale(Direction& direction, double found) {
  const double now = direction.scale;
  if (direction.before.has_value() && slower(direction.shortest, direction.shortest_before)) {
    const double before = *direction.before;
    (now > before ? direction.too_high : direction.too_low) = now;
    direction.before.reset();
    direction.settled = true;
    return before;
  }
  direction.before.reset();
  const double tolerance = direction.settled ? kToleranceLater : kTolerance;
  // Half as far as what was slower.
  constexpr double kNear = 0.01;
  double next = std::min(found, now * kLongestStep);
  if (next > direction.too_high * (1 - kNear)) next = (now + direction.too_high) / 2;
  if (next < direction.too_low * (1 + kNear)) next = (now + direction.too_low) / 2;
  if (std::abs(next / now - 1) <= tolerance) {
    direction.settled = true;
    return std::nullopt;
  }
  if (direction.changes == kMostChanges) return std::nullopt;
  ++direction.changes;
  direction.before = now;
  direction.shortest_before = direction.shortest;
  return next;
}

std::optional<HybridScale> HybridController::measured(const HybridTimes& times) {
  Direction& direction = directions_[times.one_way ? 1 : 0];
  const bool usable = times.share > 0 && times.share < 1 && times.bytes > 0;
  // Calls of before the last change say nothing. One change after the other, whatever its
  // direction.
  if (!usable || directions_[0].waits || directions_[1].waits || times.scale != direction.scale) {
    return std::nullopt;
  }
  if (direction.unjudged > 0) {
    --direction.unjudged;
    return std::nullopt;
  }
  std::vector<double>& scales = direction.scales;
  scales.push_back(scale_of(times));
  const auto [shortest, first] = direction.shortest.emplace(
      std::tuple(times.collective, times.root, times.bytes), times.seconds);
  if (!first) shortest->second = std::min(shortest->second, times.seconds);
  if (scales.size() < kSamples) return std::nullopt;
  const auto middle = scales.begin() + kSamples / 2;
  std::ranges::nth_element(scales, middle);
  const std::optional<double> next = next_scale(direction, *middle);
  scales.clear();
  direction.shortest.clear();
  if (!next.has_value()) return std::nullopt;
  direction.waits = true;
  // As the other ranks will have it.
  return HybridScale::unpacked(HybridScale{times.one_way, *next}.packed());
}

void HybridController::begins(const HybridScale& scale) {
  Direction& direction = directions_[scale.one_way ? 1 : 0];
  direction.scale = scale.scale;
  direction.waits = false;
  direction.unjudged = kUnjudged;
}

}  // namespace ropewalk::tune
