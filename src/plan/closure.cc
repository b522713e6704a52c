#include "plan/closure.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace ropewalk::plan {

namespace {
std::size_t at(int index) { return static_cast<std::size_t>(index); }
}  // namespace

Closure::Closure(const Network& network, const std::vector<double>& prices)
    : network_(network),
      costs_(network.num_ranks()),
      last_arc_(at(network.num_ranks()) * at(network.num_nodes), -1) {
  std::vector<std::vector<int>> leaving(at(network.num_nodes));
  for (std::size_t i = 0; i < network.arcs.size(); ++i) {
    if (network.arcs[i].capacity > 0) {
      leaving[at(network.arcs[i].from)].push_back(static_cast<int>(i));
    }
  }
  using Entry = std::tuple<double, int, int>;  // cost, arcs, node
  for (int rank = 0; rank < network.num_ranks(); ++rank) {
    std::vector<std::pair<double, int>> best(at(network.num_nodes), {CostMatrix::kNoWay, 0});
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
    const int start = network.ranks[at(rank)];
    best[at(start)] = {0, 0};
    open.emplace(0, 0, start);
    int* entered_by = &last_arc_[at(rank) * at(network.num_nodes)];
    while (!open.empty()) {
      const auto [cost, hops, node] = open.top();
      open.pop();
      if (std::pair(cost, hops) > best[at(node)]) {
        continue;
      }
      if (node != start && network.is_rank(node)) {
        costs_(rank, network.rank_of_node[at(node)]) = cost;
        continue;
      }
      for (const int arc : leaving[at(node)]) {
        const int next = network.arcs[at(arc)].to;
        const std::pair<double, int> through{cost + prices[at(arc)], hops + 1};
        if (through < best[at(next)]) {
          best[at(next)] = through;
          entered_by[next] = arc;
          open.emplace(through.first, through.second, next);
        }
      }
    }
  }
}

std::vector<int> Closure::path(int from_rank, int to_rank) const {
  std::vector<int> out;
  const int start = network_.ranks[at(from_rank)];
  for (int node = network_.ranks[at(to_rank)]; node != start;) {
    out.push_back(last_arc_[at(from_rank) * at(network_.num_nodes) + at(node)]);
    node = network_.arcs[at(out.back())].from;
  }
  std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace ropewalk::plan
