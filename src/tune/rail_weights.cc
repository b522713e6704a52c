#include "tune/rail_weights.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "schedule/limits.h"

namespace ropewalk::tune {
namespace {

constexpr double kEqual = 7.0 / 8;
constexpr double kLevels = 16;

}  // namespace

std::vector<int> channel_weights(std::span<const double> rates, int channels) {
  const auto count = static_cast<std::size_t>(channels);
  const std::size_t rails = std::max<std::size_t>(1, rates.size());
  std::vector<int> weights(count, 1);
  if (rails == 1) return weights;
  const std::size_t used = std::min(rails, count);
  for (std::size_t c = 0; c < count; ++c) {
    const std::size_t rail = c % rails;
    const std::size_t users = (count - rail + rails - 1) / rails;
    double share = rates[rail] / rates[0];
    if (as_fast(rates[rail], rates[0])) share = 1;
    // Sixteenths of each channel's share of the rail, so that few channels more do not round to 0.
    weights[c] =
        std::max(1, static_cast<int>(std::lround(share * kLevels * static_cast<double>(count) /
                                                 static_cast<double>(users * used))));
  }
  const int common = std::accumulate(weights.begin(), weights.end(), 0,
                                     [](int a, int b) { return std::gcd(a, b); });
  for (int& weight : weights) weight /= common;
  return weights;
}

bool as_fast(double rate, double fastest) { return rate >= kEqual * fastest; }

schedule::Schedule spread_over_rails(schedule::Schedule schedule, std::span<const double> rates) {
  const std::size_t rails = rates.size();
  if (rails < 2) return schedule;
  const std::vector<int> shares = channel_weights(rates, static_cast<int>(rails));
  std::vector<double> wanted;
  for (const int weight : schedule.weight) {
    for (const int share : shares) wanted.push_back(static_cast<double>(weight) * share);
  }
  const double most = *std::ranges::max_element(wanted);
  const double scale = std::min(1.0, schedule::kMaxWeight / most);
  schedule.weight.clear();
  for (const double weight : wanted) {
    schedule.weight.push_back(std::max(1, static_cast<int>(std::lround(weight * scale))));
  }
  for (std::vector<schedule::StepList>& of_rank : schedule.programs) {
    std::vector<schedule::StepList> spread;
    spread.reserve(of_rank.size() * rails);
    for (const schedule::StepList& steps : of_rank) spread.insert(spread.end(), rails, steps);
    of_rank = std::move(spread);
  }
  return schedule;
}

}  // namespace ropewalk::tune
