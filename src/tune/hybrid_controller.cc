#include "tune/hybrid_controller.h"

#include <algorithm>
#include <cmath>

namespace ropewalk::tune {
namespace {

constexpr double kMillion = 1e6;

}  // namespace

std::uint64_t packed_scale(double scale) noexcept {
  return static_cast<std::uint64_t>(std::llround(scale * kMillion));
}

double unpacked_scale(std::uint64_t value) noexcept {
  return static_cast<double>(value) / kMillion;
}

double HybridController::direct_seconds(const HybridTimes& times) const noexcept {
  return times.hops * links_.direct_hop + times.bytes * (1 - times.share) / links_.direct_rate;
}

double HybridController::setup_seconds(const HybridTimes& times, double scale) const noexcept {
  HybridLinks links = links_;
  links.host_scale = scale;
  return links.host_setup(times.hops, false, times.chunk_bytes);
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
  const double scale = times.bytes * times.share / moving / links_.host_rate_of(false);
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

std::optional<double> HybridController::next_scale(double found) {
  const double now = scale_;
  if (before_.has_value() && longer(recent_, recent_before_).value_or(0) > kSlower) {
    const double before = *before_;
    (now > before ? too_high_ : too_low_) = now;
    before_.reset();
    settled_ = true;
    return before;
  }
  before_.reset();
  const double tolerance = settled_ ? kToleranceLater : kTolerance;
  // Half as far as what was slower.
  constexpr double kNear = 0.01;
  double next = std::min(found, now * kLongestStep);
  if (next > too_high_ * (1 - kNear)) next = (now + too_high_) / 2;
  if (next < too_low_ * (1 + kNear)) next = (now + too_low_) / 2;
  if (std::abs(next / now - 1) <= tolerance) {
    settled_ = true;
    return std::nullopt;
  }
  if (changes_ == kMostChanges) return std::nullopt;
  ++changes_;
  before_ = now;
  recent_before_ = recent_;
  return next;
}

std::optional<double> HybridController::measured(const HybridTimes& times) {
  // Calls of before the last change say nothing.
  if (!tells(times) || waits_ || times.scale != scale_) return std::nullopt;
  if (unjudged_ > 0) {
    --unjudged_;
    return std::nullopt;
  }
  scales_.push_back(scale_of(times));
  if (recent_.size() == kMostKinds) recent_.clear();
  Recent& recent = recent_[{times.collective, times.bytes}];
  recent.add(times.seconds);
  const bool judged = !before_.has_value() || longer(recent_, recent_before_).has_value();
  const bool enough = recent.calls >= kSamples && scales_.size() >= kSamples && judged;
  if (!enough && scales_.size() < kMostSamples) return std::nullopt;
  const auto middle = scales_.begin() + static_cast<std::ptrdiff_t>(scales_.size() / 2);
  std::ranges::nth_element(scales_, middle);
  const std::optional<double> next = next_scale(*middle);
  scales_.clear();
  if (!next.has_value()) return std::nullopt;
  recent_.clear();
  waits_ = true;
  // As the other ranks will have it.
  return unpacked_scale(packed_scale(*next));
}

void HybridController::begins(double scale) {
  scale_ = scale;
  waits_ = false;
  unjudged_ = kUnjudged;
}

}  // namespace ropewalk::tune
