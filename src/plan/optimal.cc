#include "plan/optimal.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/index.h"
#include "plan/edge_splitting.h"
#include "plan/tree_packing.h"

namespace ropewalk::plan {

namespace {

/// A batch whose edges go along several paths each becomes as many trees as its pieces need.
void route(SplitNetwork& split, const Batch& batch, const Fraction& unit_weight,
           std::vector<OutTree>& out) {
  // Every edge cuts the batch's units into runs; where any edge changes path, a new tree begins.
  std::vector<std::vector<PathShare>> shares;
  std::set<Capacity> ends;
  for (const auto& [from, to] : batch.edges) {
    shares.push_back(split.take(from, to, batch.multiplicity));
    // Largest first, so that the runs of many edges end together.
    std::stable_sort(shares.back().begin(), shares.back().end(),
                     [](const PathShare& a, const PathShare& b) { return a.amount > b.amount; });
    Capacity end = 0;
    for (const PathShare& share : shares.back()) {
      end += share.amount;
      ends.insert(end);
    }
    RW_ASSERT(end == batch.multiplicity);
  }
  std::vector<std::size_t> index(shares.size(), 0);
  std::vector<Capacity> used(shares.size(), 0);
  Capacity begin = 0;
  for (const Capacity end : ends) {
    OutTree tree{batch.root, Fraction(end - begin) * unit_weight, {}};
    for (std::size_t i = 0; i < shares.size(); ++i) {
      tree.edges.push_back({batch.edges[i].first, batch.edges[i].second, shares[i][index[i]].arcs});
      used[i] += end - begin;
      if (used[i] == shares[i][index[i]].amount) {
        used[i] = 0;
        ++index[i];
      }
    }
    begin = end;
    out.push_back(std::move(tree));
  }
}

/// Trees of the same root over the same paths are one tree.
std::vector<OutTree> merged(std::vector<OutTree> trees) {
  std::vector<OutTree> out;
  for (OutTree& tree : trees) {
    const auto same = std::find_if(out.begin(), out.end(), [&](const OutTree& other) {
      return other.root == tree.root && other.edges == tree.edges;
    });
    if (same != out.end()) {
      same->weight += tree.weight;
    } else {
      out.push_back(std::move(tree));
    }
  }
  return out;
}

std::vector<OutTree> pack(const Network& network, const Supplies& supplies,
                          const Fraction& unit_weight) {
  SplitNetwork split(network, supplies);
  std::vector<OutTree> out;
  for (const Batch& batch : pack_trees(split, supplies)) {
    route(split, batch, unit_weight, out);
  }
  return merged(std::move(out));
}

Network scaled(const Network& network, Capacity scale) {
  Network out = network;
  for (Arc& arc : out.arcs) {
    arc.capacity *= scale;
  }
  return out;
}

/// The network with capacities floor(factor x b); arcs of none are gone from the flow, not the
/// list.
Network rounded_down(const Network& network, const Fraction& factor) {
  Network out = network;
  for (Arc& arc : out.arcs) {
    arc.capacity = static_cast<Capacity>((factor * Fraction(arc.capacity)).floor());
  }
  return out;
}

bool feasible(const Network& network, const Supplies& supplies) {
  const Capacity total = std::accumulate(supplies.begin(), supplies.end(), Capacity{0});
  FlowGraph graph(network.num_nodes);
  for (const Arc& arc : network.arcs) {
    graph.add_arc(arc.from, arc.to, arc.capacity);
  }
  const int source = graph.add_node();
  for (int rank = 0; rank < network.num_ranks(); ++rank) {
    graph.add_arc(source, network.ranks[at(rank)], supplies[at(rank)]);
  }
  return std::all_of(network.ranks.begin(), network.ranks.end(),
                     [&](int sink) { return graph.max_flow(source, sink, total) >= total; });
}

/// Trees per unit of capacity: the least number for which the supplies fit whole.
Fraction least_factor(const Network& network, const Supplies& supplies,
                      const Fraction& rate_limit) {
  const Fraction total = std::accumulate(supplies.begin(), supplies.end(), Capacity{0});
  std::set<Capacity> capacities;
  for (const Arc& arc : network.arcs) {
    capacities.insert(arc.capacity);
  }
  // `low` is too few (or exactly the bound), `high` is enough.
  Fraction low = total / rate_limit;
  if (feasible(rounded_down(network, low), supplies)) {
    return low;
  }
  Fraction high = low * 2;
  while (!feasible(rounded_down(network, high), supplies)) {
    low = high;
    high *= 2;
  }
  const Fraction largest = *capacities.rbegin();
  const Fraction apart = Fraction(1) / (largest * largest);
  while (high - low > apart) {
    // A short fraction near the middle keeps the digits few.
    const Fraction width = high - low;
    const Fraction grain = Fraction(1, 4 * (Fraction(1) / width).floor() + 4);
    const Fraction middle = Fraction(((low + width / 2) / grain).floor()) * grain;
    (feasible(rounded_down(network, middle), supplies) ? high : low) = middle;
  }
  std::set<Fraction> candidates;
  for (const Capacity capacity : capacities) {
    const Fraction candidate((high * Fraction(capacity)).floor(), capacity);
    if (candidate > low) {
      candidates.insert(candidate);
    }
  }
  for (const Fraction& candidate : candidates) {
    if (feasible(rounded_down(network, candidate), supplies)) {
      return candidate;
    }
  }
  return high;
}

}  // namespace

std::vector<OutTree> pack_all_gather(const Network& network, const CutBound& bound) {
  const auto scale = static_cast<Capacity>(bound.rate.denominator());
  const auto trees = static_cast<Capacity>(bound.rate.numerator());
  return pack(scaled(network, scale), Supplies(at(network.num_ranks()), trees), Fraction(1, scale));
}

std::vector<OutTree> pack_broadcast(const Network& network, int root, const CutBound& bound) {
  Supplies supplies(at(network.num_ranks()), 0);
  supplies[at(root)] = static_cast<Capacity>(bound.rate.numerator());
  return pack(network, supplies, 1);
}

std::vector<OutTree> pack_fixed(const Network& network, const Supplies& supplies,
                                const Fraction& rate_limit) {
  const Fraction factor = least_factor(network, supplies, rate_limit);
  return pack(rounded_down(network, factor), supplies, Fraction(1) / factor);
}

Fraction fixed_rate(const Network& network, const Supplies& supplies, const Fraction& rate_limit) {
  const Fraction total = std::accumulate(supplies.begin(), supplies.end(), Capacity{0});
  return total / least_factor(network, supplies, rate_limit);
}

bool is_symmetric(const Network& network) {
  const std::vector<int> twins = twin_arcs(network);
  return std::find(twins.begin(), twins.end(), -1) == twins.end();
}

}  // namespace ropewalk::plan
