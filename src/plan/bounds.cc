#include "plan/bounds.h"

#include <numeric>
#include <optional>

#include "core/error.h"
#include "core/index.h"

namespace ropewalk::plan {

namespace {

FlowGraph flow_graph(const Network& network, Capacity scale) {
  FlowGraph graph(network.num_nodes);
  for (const Arc& arc : network.arcs) {
    graph.add_arc(arc.from, arc.to, arc.capacity * scale);
  }
  return graph;
}

/// Everything but one rank: what enters it must be all that the others own.
CutBound all_but(const Network& network, int rank) {
  std::vector<bool> inside(at(network.num_nodes), true);
  inside[at(network.ranks[at(rank)])] = false;
  CutBound out{0, measure_cut(network, std::move(inside))};
  out.rate = Fraction(out.cut.capacity, out.cut.ranks_inside);
  return out;
}

}  // namespace

Cut measure_cut(const Network& network, std::vector<bool> inside) {
  Cut out;
  out.inside = std::move(inside);
  for (const Arc& arc : network.arcs) {
    if (out.inside[at(arc.from)] && !out.inside[at(arc.to)]) {
      out.capacity += arc.capacity;
    }
  }
  for (const int node : network.ranks) {
    out.ranks_inside += out.inside[at(node)] ? 1 : 0;
  }
  return out;
}

CutBound all_gather_bound(const Network& network, std::vector<int> representatives) {
  const int ranks = network.num_ranks();
  CutBound best = all_but(network, 0);
  for (int rank = 1; rank < ranks; ++rank) {
    CutBound other = all_but(network, rank);
    if (other.rate < best.rate) {
      best = std::move(other);
    }
  }
  if (representatives.empty()) {
    representatives.resize(at(ranks));
    std::iota(representatives.begin(), representatives.end(), 0);
  }
  // A pass over all sinks without a violated cut proves the guess.
  for (std::size_t proven = 0, next = 0; proven < representatives.size();) {
    const auto scale = static_cast<Capacity>(best.rate.denominator());
    const auto supply = static_cast<Capacity>(best.rate.numerator());
    FlowGraph graph = flow_graph(network, scale);
    const int source = graph.add_node();
    for (const int node : network.ranks) {
      graph.add_arc(source, node, supply);
    }
    const Capacity wanted = supply * ranks;
    while (proven < representatives.size()) {
      const int tested = network.ranks[at(representatives[next])];
      if (graph.max_flow(source, tested, wanted) < wanted) {
        std::vector<bool> inside = graph.source_side();
        inside.resize(at(network.num_nodes));
        best.cut = measure_cut(network, std::move(inside));
        const Fraction ratio(best.cut.capacity, best.cut.ranks_inside);
        RW_ASSERT(ratio < best.rate);
        best.rate = ratio;
        proven = 0;
        break;
      }
      ++proven;
      next = (next + 1) % representatives.size();
    }
  }
  return best;
}

CutBound broadcast_bound(const Network& network, int root) {
  FlowGraph graph = flow_graph(network, 1);
  const int source = network.ranks[at(root)];
  std::optional<CutBound> best;
  for (const int node : network.ranks) {
    if (node == source) {
      continue;
    }
    const Capacity enough =
        best.has_value() ? static_cast<Capacity>(best->rate.numerator()) : kUnlimited;
    const Capacity flow = graph.max_flow(source, node, enough);
    if (!best.has_value() || flow < enough) {
      best = CutBound{flow, measure_cut(network, graph.source_side())};
    }
  }
  RW_ASSERT(best.has_value() && best->rate == Fraction(best->cut.capacity));
  return *best;
}

}  // namespace ropewalk::plan
