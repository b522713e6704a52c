#include "plan/arborescence.h"

#include "core/error.h"
#include "core/index.h"
#include "core/interrupt.h"

namespace ropewalk::plan {

namespace {

struct WeightedArc {
  int from;  // in this level's nodes
  int to;
  double cost;
  int id;  // the arc's index in the level below
};

/// Best arc into every node but the root, cycles contracted and solved again. Returns the indices
/// in `arcs` of the chosen ones.
std::vector<int> solve(int nodes, int root, const std::vector<WeightedArc>& arcs) {
  std::vector<int> best(at(nodes), -1);
  for (std::size_t i = 0; i < arcs.size(); ++i) {
    const WeightedArc& arc = arcs[i];
    if (arc.to != root && arc.from != arc.to &&
        (best[at(arc.to)] < 0 || arc.cost < arcs[at(best[at(arc.to)])].cost)) {
      best[at(arc.to)] = static_cast<int>(i);
    }
  }
  // Follow the best arcs backwards; a walk that meets itself is a cycle.
  std::vector<int> group(at(nodes), -1);
  std::vector<int> visited(at(nodes), -1);
  std::vector<bool> in_cycle(at(nodes), false);
  int groups = 0;
  bool cycles = false;
  for (int start = 0; start < nodes; ++start) {
    int node = start;
    while (node != root && visited[at(node)] < 0) {
      visited[at(node)] = start;
      RW_ASSERT(best[at(node)] >= 0);
      node = arcs[at(best[at(node)])].from;
    }
    if (node != root && visited[at(node)] == start && group[at(node)] < 0) {
      cycles = true;
      for (int member = node;;) {
        group[at(member)] = groups;
        in_cycle[at(member)] = true;
        member = arcs[at(best[at(member)])].from;
        if (member == node) break;
      }
      ++groups;
    }
  }
  if (!cycles) {
    return best;
  }
  for (int node = 0; node < nodes; ++node) {
    if (group[at(node)] < 0) {
      group[at(node)] = groups++;
    }
  }
  // One arc per pair of groups is enough: the cheapest, with what it saves inside its cycle.
  std::vector<WeightedArc> contracted;
  std::vector<int> index(at(groups) * at(groups), -1);
  for (std::size_t i = 0; i < arcs.size(); ++i) {
    const WeightedArc& arc = arcs[i];
    const int from = group[at(arc.from)];
    const int to = group[at(arc.to)];
    if (from == to || arc.to == root) {
      continue;
    }
    const double cost = arc.cost - (in_cycle[at(arc.to)] ? arcs[at(best[at(arc.to)])].cost : 0.0);
    int& known = index[at(from) * at(groups) + at(to)];
    if (known < 0) {
      known = static_cast<int>(contracted.size());
      contracted.push_back({from, to, cost, static_cast<int>(i)});
    } else if (cost < contracted[at(known)].cost) {
      contracted[at(known)] = {from, to, cost, static_cast<int>(i)};
    }
  }
  std::vector<int> chosen = best;
  for (int node = 0; node < nodes; ++node) {
    if (!in_cycle[at(node)]) {
      chosen[at(node)] = -1;
    }
  }
  for (const int i : solve(groups, group[at(root)], contracted)) {
    if (i >= 0) {
      const int arc = contracted[at(i)].id;
      chosen[at(arcs[at(arc)].to)] = arc;  // also breaks the cycle that it enters
    }
  }
  return chosen;
}

}  // namespace

std::vector<int> cheapest_out_tree(const CostMatrix& costs, int root) {
  check_stopped("planning");
  const int ranks = costs.ranks();
  std::vector<WeightedArc> arcs;
  arcs.reserve(at(ranks) * at(ranks));
  for (int from = 0; from < ranks; ++from) {
    for (int to = 0; to < ranks; ++to) {
      if (from != to && to != root && costs(from, to) < CostMatrix::kUnreachable) {
        arcs.push_back({from, to, costs(from, to), 0});
      }
    }
  }
  const std::vector<int> chosen = solve(ranks, root, arcs);
  std::vector<int> parents(at(ranks), -1);
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank != root) {
      RW_ASSERT(chosen[at(rank)] >= 0);
      parents[at(rank)] = arcs[at(chosen[at(rank)])].from;
    }
  }
  return parents;
}

double cost_of(const CostMatrix& costs, const std::vector<int>& parents) {
  double sum = 0;
  for (int rank = 0; rank < costs.ranks(); ++rank) {
    if (parents[at(rank)] >= 0) {
      sum += costs(parents[at(rank)], rank);
    }
  }
  return sum;
}

}  // namespace ropewalk::plan
