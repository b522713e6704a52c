#include "schedule/lags.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

namespace ropewalk::schedule {
namespace {

using Lags = std::vector<std::vector<std::uint32_t>>;

/// A step, by rank and index in its list.
struct StepId {
  std::size_t rank = 0;
  std::size_t step = 0;
};
/// A chunk sent from one step to another.
struct Edge {
  StepId from;
  StepId to;
};
/// The steps at both ends of a link, in the order of its chunks.
struct LinkEnds {
  std::vector<StepId> sends;
  std::vector<StepId> takes;
};

using Links = std::map<std::pair<std::size_t, std::size_t>, LinkEnds>;

Links links_of(const Schedule& schedule, std::size_t channel) {
  Links links;
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

/// A step's lag is that of its group and its level in the group: a group is what edges join.
struct Level {
  std::size_t group = 0;
  int level = 0;  // the least of a group is 0
};
struct Levels {
  std::vector<std::vector<Level>> of;  // [rank][step]
  std::size_t groups = 0;
};

/// Levels such that the ends of each edge differ by one; nothing when there are none.
std::optional<Levels> levels_of(const Schedule& schedule, std::size_t channel,
                                const std::vector<Edge>& edges) {
  const std::size_t ranks = schedule.programs.size();
  Levels levels;
  std::vector<std::vector<bool>> known(ranks);
  std::vector<std::vector<std::vector<std::pair<StepId, int>>>> next(ranks);
  levels.of.resize(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    levels.of[r].resize(schedule.programs[r][channel].size());
    known[r].resize(levels.of[r].size());
    next[r].resize(levels.of[r].size());
  }
  for (const Edge& edge : edges) {
    next[edge.from.rank][edge.from.step].emplace_back(edge.to, 1);
    next[edge.to.rank][edge.to.step].emplace_back(edge.from, -1);
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    for (std::size_t s = 0; s < known[r].size(); ++s) {
      if (known[r][s]) continue;
      std::vector<StepId> joined = {{r, s}};
      known[r][s] = true;
      levels.of[r][s] = {levels.groups, 0};
      int least = 0;
      for (std::size_t i = 0; i < joined.size(); ++i) {
        const StepId at = joined[i];
        const int level = levels.of[at.rank][at.step].level;
        least = std::min(least, level);
        for (const auto& [to, more] : next[at.rank][at.step]) {
          Level& other = levels.of[to.rank][to.step];
          if (!known[to.rank][to.step]) {
            known[to.rank][to.step] = true;
            other = {levels.groups, level + more};
            joined.push_back(to);
          } else if (other.level != level + more) {
            return std::nullopt;
          }
        }
      }
      for (const StepId& id : joined) levels.of[id.rank][id.step].level -= least;
      ++levels.groups;
    }
  }
  return levels;
}

/// Steps of one block on one rank: the later may not lag less than the earlier.
struct Order {
  Level earlier;
  Level later;
};

std::vector<Order> orders_of(const Schedule& schedule, std::size_t channel, const Levels& levels) {
  std::vector<Order> orders;
  for (std::size_t r = 0; r < levels.of.size(); ++r) {
    std::map<int, std::size_t> last;  // step of each block
    const StepList& steps = schedule.programs[r][channel];
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const auto [before, is_first] = last.try_emplace(steps[s].block, s);
      if (is_first) continue;
      orders.push_back({levels.of[r][before->second], levels.of[r][s]});
      before->second = s;
    }
  }
  return orders;
}

/// The least lags of the groups that keep these orders; nothing when none do.
std::optional<std::vector<int>> least_lags(std::size_t groups, const std::vector<Order>& orders) {
  std::vector<int> lags(groups, 0);
  // Longest paths in the manner of Bellman and Ford. A circle of orders that nothing fulfils grows
  // until it is cut off.
  for (bool grew = true; grew;) {
    grew = false;
    for (const Order& order : orders) {
      const int least = lags[order.earlier.group] + order.earlier.level - order.later.level;
      int& lag = lags[order.later.group];
      if (lag >= least) continue;
      if (least > kMostLag) return std::nullopt;
      lag = least;
      grew = true;
    }
  }
  return lags;
}

/// Steps as numbers, those of a rank in order.
class StepNumbers {
 public:
  StepNumbers(const Schedule& schedule, std::size_t channel) {
    for (const auto& programs : schedule.programs) {
      first_.push_back(total_);
      total_ += programs[channel].size();
    }
  }
  [[nodiscard]] std::size_t of(const StepId& id) const { return first_[id.rank] + id.step; }
  [[nodiscard]] std::size_t total() const { return total_; }

 private:
  std::vector<std::size_t> first_;
  std::size_t total_ = 0;
};

/// What must come before each step in its own turn: the step before it, and the taking of the chunk
/// whose slot it needs, where that is one of this turn.
std::vector<std::vector<std::size_t>> followers_in_turn(const Schedule& schedule,
                                                        std::size_t channel, const Links& links,
                                                        std::size_t slots,
                                                        const StepNumbers& numbers) {
  std::vector<std::vector<std::size_t>> followers(numbers.total());
  for (std::size_t r = 0; r < schedule.programs.size(); ++r) {
    for (std::size_t s = 1; s < schedule.programs[r][channel].size(); ++s) {
      followers[numbers.of({r, s - 1})].push_back(numbers.of({r, s}));
    }
  }
  for (const auto& [pair, link] : links) {
    const std::size_t chunks = link.sends.size();
    for (std::size_t p = 0; p < chunks; ++p) {
      // Chunk p of turn t needs the slot of chunk p + chunks - slots of turn t - 1, counted on into
      // earlier turns, which is taken a turn after it was sent.
      if (p + chunks < slots) continue;
      followers[numbers.of(link.takes[p + chunks - slots])].push_back(numbers.of(link.sends[p]));
    }
  }
  return followers;
}

/// Whether some order has each step after all that must come before it (Kahn, 1962).
bool has_order(const std::vector<std::vector<std::size_t>>& followers) {
  std::vector<std::size_t> before(followers.size());
  for (const auto& list : followers) {
    for (const std::size_t step : list) ++before[step];
  }
  std::vector<std::size_t> ready;
  for (std::size_t s = 0; s < before.size(); ++s) {
    if (before[s] == 0) ready.push_back(s);
  }
  for (std::size_t i = 0; i < ready.size(); ++i) {
    for (const std::size_t step : followers[ready[i]]) {
      if (--before[step] == 0) ready.push_back(step);
    }
  }
  return ready.size() == before.size();
}

/// Whether steps that take each chunk a turn after it was sent come to their end over links of
/// `slots` chunks.
bool comes_to_end(const Schedule& schedule, std::size_t channel, const Links& links,
                  std::size_t slots) {
  std::size_t most = 0;
  for (const auto& [pair, link] : links) most = std::max(most, link.sends.size());
  if (2 * most <= slots) return true;
  if (most > slots) return false;
  const StepNumbers numbers(schedule, channel);
  return has_order(followers_in_turn(schedule, channel, links, slots, numbers));
}

}  // namespace

Lags find_lags(const Schedule& schedule, int channel, std::uint32_t slots) {
  const auto c = static_cast<std::size_t>(channel);
  Lags plain(schedule.programs.size());
  for (std::size_t r = 0; r < plain.size(); ++r) plain[r].resize(schedule.programs[r][c].size());

  std::vector<Edge> edges;
  const Links links = links_of(schedule, c);
  if (!comes_to_end(schedule, c, links, slots)) return plain;
  for (const auto& [pair, link] : links) {
    for (std::size_t k = 0; k < link.sends.size(); ++k) {
      edges.push_back({link.sends[k], link.takes[k]});
    }
  }
  const auto levels = levels_of(schedule, c, edges);
  if (!levels) return plain;
  const auto groups = least_lags(levels->groups, orders_of(schedule, c, *levels));
  if (!groups) return plain;
  Lags lags = plain;
  for (std::size_t r = 0; r < lags.size(); ++r) {
    for (std::size_t s = 0; s < lags[r].size(); ++s) {
      const Level& level = levels->of[r][s];
      lags[r][s] = static_cast<std::uint32_t>((*groups)[level.group] + level.level);
    }
  }
  return lags;
}

}  // namespace ropewalk::schedule
