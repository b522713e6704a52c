#include "plan/certificate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "core/index.h"

namespace ropewalk::plan {

namespace {

constexpr double kTolerance = 1e-6;
constexpr double kFar = std::numeric_limits<double>::infinity();

class Checker {
 public:
  Checker(const topology::Topology& topology, const Plan& plan) : topology_(topology), plan_(plan) {
    rank_of_.assign(topology.nodes().size(), -1);
    for (std::size_t rank = 0; rank < plan.gpus.size(); ++rank) {
      rank_of_[at(plan.gpus[rank])] = static_cast<int>(rank);
    }
    // Links of the plane between nodes that may take part: GPUs that were not chosen may not.
    std::set<topology::LinkType> types(topology::all_link_types().begin(),
                                       topology::all_link_types().end());
    for (const topology::Plane& plane : topology.planes()) {
      if (plane.name == plan.plane) types = {plane.types.begin(), plane.types.end()};
    }
    for (std::size_t i = 0; i < topology.links().size(); ++i) {
      const topology::Link& link = topology.link(i);
      usable_.push_back(types.count(link.type) > 0 && takes_part(link.source) &&
                        takes_part(link.destination));
    }
  }

  Certificate run() {
    check_trees();
    check_weights();
    check_loads();
    out_.valid = out_.defects.empty();
    out_.bound_holds = plan_.bound.why.prices.empty() ? check_cut() : check_prices();
    const double rate = plan_.algbw.to_double();
    const double bound = plan_.bound.algbw.to_double();
    const bool reached = rate >= bound * (1 - kTolerance);
    if (out_.valid && out_.bound_holds && rate > bound * (1 + kTolerance)) {
      defect(fmt::format("the rate {:.6g} GB/s is above the bound {:.6g} GB/s", rate, bound));
    }
    out_.optimal = out_.valid && out_.bound_holds && reached;
    if (plan_.optimal && !out_.optimal) {
      defect("the plan says that it is optimal, which is not shown");
    }
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool takes_part(topology::NodeIndex node) const {
    return topology_.node(node).kind != topology::NodeKind::kGpu || rank_of_[node] >= 0;
  }

  void defect(std::string sentence) {
    if (out_.defects.size() < 20) out_.defects.push_back(std::move(sentence));
  }

  void check_trees() {
    const bool down = plan_.collective == Collective::kBroadcast ||
                      plan_.collective == Collective::kAllGather ||
                      plan_.collective == Collective::kAllReduce;
    const bool up = plan_.collective == Collective::kReduce ||
                    plan_.collective == Collective::kReduceScatter ||
                    plan_.collective == Collective::kAllReduce;
    if (!down && !up) defect(fmt::format("{} has no plans", name(plan_.collective)));
    for (std::size_t i = 0; i < plan_.trees.size(); ++i) {
      const Tree& tree = plan_.trees[i];
      if (has_root(plan_.collective) && tree.root != plan_.root) {
        defect(fmt::format("tree {}: its root is {}, not {}", i, tree.root, plan_.root));
      }
      if (down != !tree.broadcast.empty() || up != !tree.reduce.empty()) {
        defect(fmt::format("tree {}: has not the edges that {} needs", i, name(plan_.collective)));
      }
      if (down) check_tree(i, tree.root, tree.broadcast, false);
      if (up) check_tree(i, tree.root, tree.reduce, true);
    }
  }

  /// Every rank but the root exactly once on the far side, after its neighbour towards the root.
  void check_tree(std::size_t index, int root, const std::vector<TreeEdge>& edges, bool upwards) {
    std::vector<bool> joined(plan_.gpus.size(), false);
    joined[at(root)] = true;
    std::size_t ranks = 1;
    const auto visit = [&](const TreeEdge& edge) {
      const int near = upwards ? edge.destination : edge.source;
      const int far = upwards ? edge.source : edge.destination;
      if (!joined[at(near)] || joined[at(far)]) {
        defect(fmt::format("tree {}: the edge {} -> {} does not extend it", index, edge.source,
                           edge.destination));
        return;
      }
      joined[at(far)] = true;
      ++ranks;
      check_path(index, edge);
    };
    if (upwards) {
      std::for_each(edges.rbegin(), edges.rend(), visit);
    } else {
      std::for_each(edges.begin(), edges.end(), visit);
    }
    if (ranks != plan_.gpus.size()) {
      defect(fmt::format("tree {}: holds {} of {} ranks", index, ranks, plan_.gpus.size()));
    }
  }

  void check_path(std::size_t index, const TreeEdge& edge) {
    auto node = static_cast<topology::NodeIndex>(plan_.gpus[at(edge.source)]);
    for (const int number : edge.links) {
      const topology::Link& link = topology_.link(at(number));
      if (!usable_[at(number)] || link.source != node) {
        defect(fmt::format("tree {}: the path {} -> {} does not go on at {}", index, edge.source,
                           edge.destination, topology_.node(node).id));
        return;
      }
      node = link.destination;
    }
    if (node != static_cast<topology::NodeIndex>(plan_.gpus[at(edge.destination)])) {
      defect(fmt::format("tree {}: the path {} -> {} ends at {}", index, edge.source,
                         edge.destination, topology_.node(node).id));
    }
  }

  void check_weights() {
    Fraction sum = 0;
    std::vector<Fraction> of_root(plan_.gpus.size(), 0);
    for (const Tree& tree : plan_.trees) {
      if (tree.weight <= Fraction(0)) defect("a tree's weight is not above zero");
      sum += tree.weight;
      of_root[at(tree.root)] += tree.weight;
    }
    if (sum != plan_.algbw) defect("the weights do not add up to the rate");
    if (plan_.collective == Collective::kAllGather ||
        plan_.collective == Collective::kReduceScatter) {
      for (std::size_t rank = 1; rank < of_root.size(); ++rank) {
        if (of_root[rank] != of_root[0]) {
          defect(fmt::format("the trees of rank {} weigh more or less than those of rank 0", rank));
        }
      }
    }
  }

  void check_loads() {
    // Edges of trees with the same weight are counted, then weighed.
    std::vector<std::map<Fraction, Fraction::Integer>> times(topology_.links().size());
    for (const Tree& tree : plan_.trees) {
      for (const TreeEdge& edge : tree.reduce) count(times, edge, tree.weight);
      for (const TreeEdge& edge : tree.broadcast) count(times, edge, tree.weight);
    }
    std::vector<Fraction> load(topology_.links().size(), 0);
    for (std::size_t i = 0; i < load.size(); ++i) {
      for (const auto& [weight, number] : times[i]) load[i] += weight * Fraction(number);
    }
    for (std::size_t i = 0; i < load.size(); ++i) {
      const topology::Link& link = topology_.link(i);
      const Fraction capacity = Fraction::from_decimal(link.capacity, 6);
      out_.largest_load = std::max(out_.largest_load, (load[i] / capacity).to_double());
      if (load[i] > capacity) {
        defect(fmt::format("the link {} -> {} carries {:.6g} of {:.6g} GB/s",
                           topology_.node(link.source).id, topology_.node(link.destination).id,
                           load[i].to_double(), link.capacity));
      }
    }
  }

  static void count(std::vector<std::map<Fraction, Fraction::Integer>>& times, const TreeEdge& edge,
                    const Fraction& weight) {
    for (const int link : edge.links) ++times[at(link)][weight];
  }

  /// Nodes that `start` reaches without the links in `without`.
  [[nodiscard]] std::vector<bool> reach(const std::vector<topology::NodeIndex>& start,
                                        const std::set<int>& without) const {
    std::vector<bool> seen(topology_.nodes().size(), false);
    std::vector<topology::NodeIndex> pending = start;
    for (const topology::NodeIndex node : start) seen[node] = true;
    while (!pending.empty()) {
      const topology::NodeIndex node = pending.back();
      pending.pop_back();
      for (const topology::LinkIndex i : topology_.links_from(node)) {
        const topology::NodeIndex next = topology_.link(i).destination;
        if (usable_[i] && without.count(static_cast<int>(i)) == 0 && !seen[next]) {
          seen[next] = true;
          pending.push_back(next);
        }
      }
    }
    return seen;
  }

  /// The links of the cut must part the ranks, and their capacity must give the bound.
  bool check_cut() {
    const Bottleneck& why = plan_.bound.why;
    if (plan_.collective == Collective::kAllReduce) {
      defect("all_reduce has no bound by a cut");
      return false;
    }
    const bool backwards =
        plan_.collective == Collective::kReduceScatter || plan_.collective == Collective::kReduce;
    std::set<int> inside;
    for (const int node : why.inside_nodes) {
      if (rank_of_[at(node)] >= 0) inside.insert(rank_of_[at(node)]);
    }
    std::vector<topology::NodeIndex> from;
    std::vector<topology::NodeIndex> to;
    for (std::size_t rank = 0; rank < plan_.gpus.size(); ++rank) {
      const bool in = inside.count(static_cast<int>(rank)) > 0;
      (in != backwards ? from : to).push_back(static_cast<topology::NodeIndex>(plan_.gpus[rank]));
    }
    const std::vector<bool> seen = reach(from, {why.links.begin(), why.links.end()});
    const bool parted =
        !from.empty() && !to.empty() &&
        std::none_of(to.begin(), to.end(), [&](topology::NodeIndex node) { return seen[node]; });
    Fraction capacity = 0;
    for (const int link : std::set<int>(why.links.begin(), why.links.end())) {
      capacity += Fraction::from_decimal(topology_.link(at(link)).capacity, 6);
    }
    Fraction bound = capacity;
    if (has_root(plan_.collective)) {
      if (inside.count(plan_.root) == 0) {
        defect("the cut does not hold the root");
        return false;
      }
    } else {
      bound = capacity * Fraction(plan_.num_ranks()) / Fraction(static_cast<int>(inside.size()));
    }
    if (!parted) defect("the links of the cut do not part the ranks inside from those outside");
    if (bound > plan_.bound.algbw) defect("the cut allows more than the bound says");
    return parted && bound <= plan_.bound.algbw;
  }

  /// Any prices prove a bound: what the links are worth, over the price of the cheapest tree.
  bool check_prices() {
    const Bottleneck& why = plan_.bound.why;
    std::vector<double> price(topology_.links().size(), 0.0);
    double worth = 0;
    for (std::size_t i = 0; i < why.links.size(); ++i) {
      if (!(why.prices[i] >= 0) || !std::isfinite(why.prices[i])) {
        defect("a price is below zero");
        return false;
      }
      price[at(why.links[i])] = why.prices[i];
      worth += why.prices[i] * topology_.link(at(why.links[i])).capacity;
    }
    const int ranks = plan_.num_ranks();
    std::vector<std::vector<double>> down(at(ranks), std::vector<double>(at(ranks), kFar));
    std::vector<std::vector<double>> up = down;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<double> cost = costs_from(plan_.gpus[at(rank)], price);
      for (int other = 0; other < ranks; ++other) {
        down[at(rank)][at(other)] = up[at(other)][at(rank)] = cost[at(plan_.gpus[at(other)])];
      }
    }
    // An in-tree or out-tree costs no less than the cheapest tree without directions: often enough.
    const double trees = plan_.collective == Collective::kAllReduce ? 2 : 1;
    const double stated = plan_.bound.algbw.to_double() * (1 + kTolerance);
    if (worth / (trees * undirected_tree(down)) <= stated) return true;
    double cheapest = kFar;
    double sum = 0;
    const bool gathers = plan_.collective == Collective::kAllGather ||
                         plan_.collective == Collective::kReduceScatter;
    for (int root = 0; root < ranks; ++root) {
      if (has_root(plan_.collective) && root != plan_.root) continue;
      double cost = 0;
      if (plan_.collective != Collective::kReduce &&
          plan_.collective != Collective::kReduceScatter) {
        cost += cheapest_tree(down, root);
      }
      if (reduces(plan_.collective)) cost += cheapest_tree(up, root);
      cheapest = std::min(cheapest, cost);
      sum += cost / ranks;
    }
    const double bound = worth / (gathers ? sum : cheapest);
    if (!(bound <= stated)) {
      defect(fmt::format("the prices allow {:.9g} GB/s, the bound says {:.9g}", bound,
                         plan_.bound.algbw.to_double()));
      return false;
    }
    return true;
  }

  /// Cheapest paths from a node to all others, by relaxing all links until nothing changes.
  [[nodiscard]] std::vector<double> costs_from(int node, const std::vector<double>& price) const {
    std::vector<double> cost(topology_.nodes().size(), kFar);
    cost[at(node)] = 0;
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t i = 0; i < topology_.links().size(); ++i) {
        const topology::Link& link = topology_.link(i);
        if (usable_[i] && cost[link.source] + price[i] < cost[link.destination]) {
          cost[link.destination] = cost[link.source] + price[i];
          changed = true;
        }
      }
    }
    return cost;
  }

  /// Price of the cheapest tree where each edge may be used in its cheaper direction (R. C. Prim
  /// 1957).
  static double undirected_tree(const std::vector<std::vector<double>>& cost) {
    const std::size_t ranks = cost.size();
    std::vector<double> nearest(ranks, kFar);
    std::vector<bool> joined(ranks, false);
    nearest[0] = 0;
    double total = 0;
    for (std::size_t step = 0; step < ranks; ++step) {
      std::size_t next = ranks;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        if (!joined[rank] && (next == ranks || nearest[rank] < nearest[next])) next = rank;
      }
      joined[next] = true;
      total += nearest[next];
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        nearest[rank] = std::min({nearest[rank], cost[next][rank], cost[rank][next]});
      }
    }
    return total;
  }

  /// Price of the cheapest tree that spans all ranks from `root`: Edmonds' recursion on a matrix.
  static double cheapest_tree(std::vector<std::vector<double>> cost, int root) {
    double total = 0;
    for (;;) {
      const int nodes = static_cast<int>(cost.size());
      // Take the cheapest entry of every column off it; what is left of them is zero.
      std::vector<int> parent(at(nodes), -1);
      for (int node = 0; node < nodes; ++node) {
        if (node == root) continue;
        for (int from = 0; from < nodes; ++from) {
          if (from != node && (parent[at(node)] < 0 ||
                               cost[at(from)][at(node)] < cost[at(parent[at(node)])][at(node)])) {
            parent[at(node)] = from;
          }
        }
        const double least = cost[at(parent[at(node)])][at(node)];
        total += least;
        for (int from = 0; from < nodes; ++from) cost[at(from)][at(node)] -= least;
      }
      // One cycle of zeros becomes one node.
      std::vector<int> cycle;
      for (int start = 0; start < nodes && cycle.empty(); ++start) {
        std::vector<int> path;
        for (int node = start; node >= 0; node = parent[at(node)]) {
          const auto met = std::find(path.begin(), path.end(), node);
          if (met != path.end()) {
            cycle.assign(met, path.end());
            break;
          }
          path.push_back(node);
        }
      }
      if (cycle.empty()) return total;
      std::vector<int> index(at(nodes), -1);
      for (const int node : cycle) index[at(node)] = 0;
      int count = 1;
      for (int node = 0; node < nodes; ++node) {
        if (index[at(node)] < 0) index[at(node)] = count++;
      }
      std::vector<std::vector<double>> next(at(count), std::vector<double>(at(count), kFar));
      for (int a = 0; a < nodes; ++a) {
        for (int b = 0; b < nodes; ++b) {
          double& known = next[at(index[at(a)])][at(index[at(b)])];
          known = std::min(known, cost[at(a)][at(b)]);
        }
      }
      cost = std::move(next);
      root = index[at(root)];
    }
  }

  const topology::Topology& topology_;
  const Plan& plan_;
  std::vector<int> rank_of_;
  std::vector<bool> usable_;
  Certificate out_;
};

}  // namespace

Certificate check(const topology::Topology& topology, const Plan& plan) {
  return Checker(topology, plan).run();
}

}  // namespace ropewalk::plan
