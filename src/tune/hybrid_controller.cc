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

double HybridController::direct_seconds(const HybridTimes& times) const noexcept {
  return times.hops * links_.direct_hop + times.bytes * (1 - times.share) / links_.direct_rate;
}

double HybridController::setup_seconds(const HybridTimes& times, double scale) const noexcept {
  HybridLinks links = links_;
  links.scale(times.one_way) = scale;
  return links.host_setup(times.hops, times.one_way, times.chunk_bytes);
}

bool HybridController::tells(const HybridTimes& times) const noexcept {
  const bool both = times.share > 0 && times.share < 1 && times.bytes > 0;
  // By the rate that was measured: a low scale says nothing about which calls are long.
  return both && setup_seconds(times, 1) <= kMostSetup * direct_seconds(times);
}

double HybridController::scale_of(const HybridTimes& times) const noexcept {
  // A call is never taken to be set-up alone.
  constexpr double kLeastMoving = 0.1;
  const double direct = direct_seconds(times);
  const double moving = std::max(
      direct + times.host_later_seconds - setup_seconds(times, times.scale), kLeastMoving * direct);
  const double scale = times.bytes * times.share / moving / links_.host_rate_of(times.one_way);
  return std::clamp(scale, kLeastScale, kMostScale);
}

double HybridController::Recent::shortest() const noexcept {
  const auto known = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(calls, kSamples));
  return *std::min_element(seconds.begin(), seconds.begin() + known);
}

std::optional<double> HybridController::longer(const RecentOf& now,
                                               const RecentOf& before) noexcept {
  std::optional<double> most;
  for (const auto& [call, recent] : now) {
    const auto found = before.find(call);
    if (found == before.end() || std::min(recent.calls, found->second.calls) < kCompared) continue;
    most = std::max(most.value_or(0), recent.shortest() / found->second.shortest());
  }
  return most;
}

std::optional<double> HybridController::next_scale(Direction& direction, double found) {
  const double now = direction.scale;
  if (direction.before.has_value() &&
      longer(direction.recent, direction.recent_before).value_or(0) > kSlower) {
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
  direction.recent_before = direction.recent;
  return next;
}

std::optional<HybridScale> HybridController::measured(const HybridTimes& times) {
  Direction& direction = directions_[times.one_way ? 1 : 0];
  // Calls of before the last change say nothing. One change after the other, whatever its
  // direction.
  if (!tells(times) || directions_[0].waits || directions_[1].waits ||
      times.scale != direction.scale) {
    return std::nullopt;
  }
  if (direction.unjudged > 0) {
    --direction.unjudged;
    return std::nullopt;
  }
  std::vector<double>& scales = direction.scales;
  scales.push_back(scale_of(times));
  if (direction.recent.size() == kMostKinds) direction.recent.clear();
  Recent& recent = direction.recent[{times.collective, times.root, times.bytes}];
  recent.add(times.seconds);
  const bool judged = !direction.before.has_value() ||
                      longer(direction.recent, direction.recent_before).has_value();
  const bool enough = recent.calls >= kSamples && scales.size() >= kSamples && judged;
  if (!enough && scales.size() < kMostSamples) return std::nullopt;
  const auto middle = scales.begin() + static_cast<std::ptrdiff_t>(scales.size() / 2);
  std::ranges::nth_element(scales, middle);
  const std::optional<double> next = next_scale(direction, *middle);
  scales.clear();
  if (!next.has_value()) return std::nullopt;
  direction.recent.clear();
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
