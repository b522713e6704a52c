#include "schedule/lags.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

namespace ropewalk::schedule {
namespace {

using Lags = std::vector<std::vector<std::uint32_t>>;

struct Place {
  std::size_t rank = 0;
  std::size_t step = 0;
};
/// A step sends a chunk to another.
struct Edge {
  Place from;
  Place to;
};
/// The steps at both ends of a link, in the order of its chunks.
struct LinkEnds {
  std::vector<Place> sends;
  std::vector<Place> takes;
};

std::map<std::pair<std::size_t, std::size_t>, LinkEnds> links_of(const Schedule& schedule,
                                                                 std::size_t channel) {
  std::map<std::pair<std::size_t, std::size_t>, LinkEnds> links;
  for (std::size_t r = 0; r < schedule.programs.size(); ++r) {
    const StepList& steps = schedule.programs[r][channel];
    for (std::size_t s = 0; s < steps.size(); ++s) {
      for (const int to : steps[s].send) {
        links[{r, static_cast<std::size_t>(to)}].sends.push_back({r, s});
      }
      for (const Operand& operand : steps[s].operands) {
        if (operand.kind != Operand::Kind::kLink) continue;
        links[{static_cast<std::size_t>(operand.peer), r}].takes.push_back({r, s});
      }
    }
  }
  return links;
}

/// Numbers for the steps such that the ends of each edge differ by one; those that edges join start
/// at 0. Nothing for a step without edges. @return nothing when there are none
std::optional<std::vector<std::vector<std::optional<int>>>> levels_of(
    const Schedule& schedule, std::size_t channel, const std::vector<Edge>& edges) {
  std::vector<std::vector<std::optional<int>>> levels(schedule.programs.size());
  std::vector<std::vector<std::vector<std::pair<Place, int>>>> next(levels.size());
  for (std::size_t r = 0; r < levels.size(); ++r) {
    levels[r].resize(schedule.programs[r][channel].size());
    next[r].resize(levels[r].size());
  }
  for (const Edge& edge : edges) {
    next[edge.from.rank][edge.from.step].emplace_back(edge.to, 1);
    next[edge.to.rank][edge.to.step].emplace_back(edge.from, -1);
  }
  for (std::size_t r = 0; r < levels.size(); ++r) {
    for (std::size_t s = 0; s < levels[r].size(); ++s) {
      if (levels[r][s] || next[r][s].empty()) continue;
      std::vector<Place> joined = {{r, s}};
      levels[r][s] = 0;
      int least = 0;
      for (std::size_t i = 0; i < joined.size(); ++i) {
        const Place at = joined[i];
        const int level = *levels[at.rank][at.step];
        least = std::min(least, level);
        for (const auto& [to, more] : next[at.rank][at.step]) {
          std::optional<int>& other = levels[to.rank][to.step];
          if (!other) {
            other = level + more;
            joined.push_back(to);
          } else if (*other != level + more) {
            return std::nullopt;
          }
        }
      }
      for (const Place& place : joined) *levels[place.rank][place.step] -= least;
    }
  }
  return levels;
}

}  // namespace

Lags find_lags(const Schedule& schedule, int channel, std::uint32_t slots) {
  const auto c = static_cast<std::size_t>(channel);
  Lags plain(schedule.programs.size());
  for (std::size_t r = 0; r < plain.size(); ++r) plain[r].resize(schedule.programs[r][c].size());

  std::vector<Edge> edges;
  for (const auto& [pair, link] : links_of(schedule, c)) {
    if (2 * link.sends.size() > slots) return plain;
    for (std::size_t k = 0; k < link.sends.size(); ++k) {
      edges.push_back({link.sends[k], link.takes[k]});
    }
  }
  const auto levels = levels_of(schedule, c, edges);
  if (!levels) return plain;
  Lags lags = plain;
  for (std::size_t r = 0; r < lags.size(); ++r) {
    std::uint32_t before = 0;
    for (std::size_t s = 0; s < lags[r].size(); ++s) {
      // A step of this rank alone goes with the one before it.
      const std::optional<int>& level = (*levels)[r][s];
      const std::uint32_t lag = level ? static_cast<std::uint32_t>(*level) : before;
      if (lag < before) return plain;
      lags[r][s] = before = lag;
    }
  }
  return lags;
}

}  // namespace ropewalk::schedule
