#include "plan/three_phase.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/index.h"
#include "plan/closure.h"
#include "plan/few_trees.h"
#include "plan/optimal.h"

namespace ropewalk::plan {

namespace {

constexpr int kLocalTrees = 8;  // within a host: they come within some percent of any number
constexpr int kMostThreePhaseRanks = 64;
// Stars alone are preferred when other trees add less: they are fewer, and shorter.
constexpr double kWorthMoreTrees = 1.001;

/// One host's GPUs and the links between its own nodes.
struct Host {
  std::vector<int> ranks;  // of the problem; the inner network's ranks are indices in this list
  Network inner;
  std::vector<int> arcs;         // of the problem's network, by inner arc
  std::vector<int> local_roots;  // indices in `ranks`
};

/// Trees within a host from one of its GPUs, in ranks and arcs of the whole network, with the share
/// of a partition that each carries.
struct LocalTree {
  std::vector<RoutedEdge> edges;
  double share = 1;
};

std::string name_of(const Problem& problem, int rank) {
  return problem.topology.node(at(problem.network.ranks[at(rank)])).id;
}

/// The path that costs the links least time, where `uses` trees are on each already.
Closure paths_beside(const Network& network, const std::vector<int>& uses) {
  std::vector<double> prices;
  for (std::size_t i = 0; i < network.arcs.size(); ++i) {
    prices.push_back((1.0 + uses[i]) / static_cast<double>(network.arcs[i].capacity));
  }
  return Closure(network, prices);
}

bool joined(const Closure& paths, int a, int b) {
  return paths.costs()(a, b) < CostMatrix::kUnreachable &&
         paths.costs()(b, a) < CostMatrix::kUnreachable;
}

/// @throws Error kInvalidArgument naming a GPU that others of its host cannot reach within it
void require_connected(const Problem& problem, const Host& host) {
  const Network back = reversed(host.inner);
  for (const Network* network : {&host.inner, &back}) {
    std::vector<bool> seen(at(network->num_nodes), false);
    std::vector<int> open{network->ranks[0]};
    seen[at(open[0])] = true;
    while (!open.empty()) {
      const int node = open.back();
      open.pop_back();
      for (const Arc& arc : network->arcs) {
        if (arc.from != node || seen[at(arc.to)]) continue;
        seen[at(arc.to)] = true;
        open.push_back(arc.to);
      }
    }
    for (std::size_t i = 0; i < network->ranks.size(); ++i) {
      if (seen[at(network->ranks[i])]) continue;
      throw Error(Errc::kInvalidArgument,
                  "three-phase: {} and {} have no path to each other within their host",
                  name_of(problem, host.ranks[0]), name_of(problem, host.ranks[i]));
    }
  }
}

std::vector<Host> hosts_of(const Problem& problem) {
  const Network& network = problem.network;
  const auto host_of = [&](int node) { return problem.topology.node(at(node)).host; };
  std::map<int, Host> by_number;
  for (int rank = 0; rank < network.num_ranks(); ++rank) {
    by_number[host_of(network.ranks[at(rank)])].ranks.push_back(rank);
  }
  if (by_number.size() < 2) {
    throw Error(Errc::kInvalidArgument,
                "three-phase: all GPUs are on one host; packed has the trees within it");
  }
  std::vector<Host> out;
  for (auto& [number, host] : by_number) {
    host.inner = network;
    host.inner.ranks.clear();
    host.inner.arcs.clear();
    std::fill(host.inner.rank_of_node.begin(), host.inner.rank_of_node.end(), -1);
    for (const int rank : host.ranks) {
      const int node = network.ranks[at(rank)];
      host.inner.rank_of_node[at(node)] = host.inner.num_ranks();
      host.inner.ranks.push_back(node);
    }
    for (std::size_t i = 0; i < network.arcs.size(); ++i) {
      const Arc& arc = network.arcs[i];
      if (host_of(arc.from) != number || host_of(arc.to) != number) continue;
      host.inner.arcs.push_back(arc);
      host.arcs.push_back(static_cast<int>(i));
    }
    require_connected(problem, host);
    out.push_back(std::move(host));
  }
  return out;
}

/// The GPUs that reach every other host without passing a GPU, the same number on each host.
void choose_local_roots(const Problem& problem, std::vector<Host>& hosts) {
  const Closure paths =
      paths_beside(problem.network, std::vector<int>(problem.network.arcs.size(), 0));
  std::size_t fewest = problem.network.ranks.size();
  for (Host& host : hosts) {
    for (std::size_t i = 0; i < host.ranks.size(); ++i) {
      const bool reaches_all = std::all_of(hosts.begin(), hosts.end(), [&](const Host& other) {
        return &other == &host || std::any_of(other.ranks.begin(), other.ranks.end(), [&](int to) {
          return joined(paths, host.ranks[i], to);
        });
      });
      if (reaches_all) host.local_roots.push_back(static_cast<int>(i));
    }
    if (host.local_roots.empty()) {
      throw Error(Errc::kInvalidArgument,
                  "three-phase: no GPU of {}'s host has a path to every other host that passes no "
                  "other GPU",
                  name_of(problem, host.ranks[0]));
    }
    fewest = std::min(fewest, host.local_roots.size());
  }
  for (Host& host : hosts) host.local_roots.resize(fewest);
}

/// Paths between two ranks along the edges of a tree that is used in both directions.
using TreePaths = std::map<std::pair<int, int>, std::vector<int>>;

TreePaths paths_of(const TreePair& tree) {
  TreePaths out;
  for (const RoutedEdge& edge : tree.out) out[{edge.parent, edge.child}] = edge.arcs;
  for (const RoutedEdge& edge : tree.in) {
    std::vector<int> arcs(edge.arcs.rbegin(), edge.arcs.rend());
    out[{edge.child, edge.parent}] = std::move(arcs);
  }
  return out;
}

/// The tree hung up at `root`; over the reversed network where `up`.
std::vector<RoutedEdge> hung_at(const TreePaths& paths, int root, bool up) {
  std::vector<RoutedEdge> out;
  std::vector<int> order{root};
  std::vector<int> above{-1};
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (const auto& [ends, arcs] : paths) {
      if (ends.first != order[i] || ends.second == above[i]) continue;
      RoutedEdge edge{ends.first, ends.second, arcs};
      if (up) {
        edge.arcs = paths.at({ends.second, ends.first});
        std::reverse(edge.arcs.begin(), edge.arcs.end());
      }
      out.push_back(std::move(edge));
      order.push_back(ends.second);
      above.push_back(order[i]);
    }
  }
  return out;
}

std::vector<RoutedEdge> star(const Closure& paths, int root, int num_ranks) {
  std::vector<RoutedEdge> out;
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (rank == root) continue;
    if (paths.costs()(root, rank) >= CostMatrix::kUnreachable) return {};
    out.push_back({root, rank, paths.path(root, rank)});
  }
  return out;
}

/// The trees within hosts, made when they are first asked for.
class LocalTrees {
 public:
  LocalTrees(const Problem& problem, const std::vector<Host>& hosts)
      : hosts_(hosts),
        most_(problem.trees_per_root > 0 ? std::min(problem.trees_per_root, kLocalTrees)
                                         : kLocalTrees),
        bidirectional_(problem.collective == Collective::kAllReduce &&
                       is_symmetric(problem.network)),
        mirrored_(hosts.size()) {}

  /// From `root` (an index into the host's ranks); over the reversed network where `up`. A star
  /// alone where `stars`; nothing where there is none.
  std::vector<LocalTree> from(std::size_t host, int root, bool up, bool stars) {
    const Host& here = hosts_[host];
    if (here.ranks.size() == 1) return {LocalTree{}};
    const Network network = up ? reversed(here.inner) : here.inner;
    std::vector<LocalTree> out;
    if (stars) {
      const std::vector<int> unused(network.arcs.size(), 0);
      std::vector<RoutedEdge> edges =
          star(paths_beside(network, unused), root, network.num_ranks());
      if (!edges.empty()) out.push_back({std::move(edges), 1});
    } else if (bidirectional_) {
      if (!mirrored_[host].has_value()) {
        mirrored_[host] = few_trees(here.inner, Collective::kAllReduce, 0, most_);
      }
      const FewTrees& found = *mirrored_[host];
      for (std::size_t i = 0; i < found.trees.size(); ++i) {
        out.push_back({hung_at(paths_of(found.trees[i]), root, up),
                       (found.weights[i] / found.rate).to_double()});
      }
    } else {
      const FewTrees found = few_trees(network, Collective::kBroadcast, root, most_);
      for (std::size_t i = 0; i < found.trees.size(); ++i) {
        out.push_back({found.trees[i].out, (found.weights[i] / found.rate).to_double()});
      }
    }
    for (LocalTree& tree : out) {
      for (RoutedEdge& edge : tree.edges) {
        edge.parent = here.ranks[at(edge.parent)];
        edge.child = here.ranks[at(edge.child)];
        for (int& arc : edge.arcs) arc = here.arcs[at(arc)];
      }
    }
    return out;
  }

 private:
  const std::vector<Host>& hosts_;
  int most_;
  bool bidirectional_;
  std::vector<std::optional<FewTrees>> mirrored_;
};

/// A tree over all hosts for one part of a partition.
struct WholeTree {
  std::vector<RoutedEdge> edges;
  double share = 1;
};

/// Puts one tree of each host behind `first` edges: hosts' shares are laid side by side, and where
/// any of them changes its tree, a new tree over all hosts begins.
std::vector<WholeTree> joined_trees(const std::vector<std::vector<LocalTree>>& hosts,
                                    const std::vector<RoutedEdge>& between,
                                    std::size_t first_host) {
  std::vector<WholeTree> out;
  std::vector<std::size_t> index(hosts.size(), 0);
  std::vector<double> left;
  for (const std::vector<LocalTree>& trees : hosts) {
    if (trees.empty()) return {};
    left.push_back(trees[0].share);
  }
  constexpr double kRounding = 1e-9;
  for (;;) {
    const double share = *std::min_element(left.begin(), left.end());
    WholeTree tree;
    tree.share = share;
    const auto add = [&](std::size_t host) {
      const std::vector<RoutedEdge>& edges = hosts[host][index[host]].edges;
      tree.edges.insert(tree.edges.end(), edges.begin(), edges.end());
    };
    // Parents before children: the host where it begins, the hops between hosts, the other hosts.
    add(first_host);
    tree.edges.insert(tree.edges.end(), between.begin(), between.end());
    for (std::size_t host = 0; host < hosts.size(); ++host) {
      if (host != first_host) add(host);
    }
    out.push_back(std::move(tree));
    for (std::size_t host = 0; host < hosts.size(); ++host) {
      left[host] -= share;
      if (left[host] > kRounding) continue;
      if (++index[host] == hosts[host].size()) return out;
      left[host] = hosts[host][index[host]].share;
    }
  }
}

/// All trees of all partitions, in pairs for all_reduce; only stars within hosts, or packed trees.
class Partitions {
 public:
  Partitions(const Problem& problem, const std::vector<Host>& hosts)
      : problem_(problem),
        hosts_(hosts),
        back_(reversed(problem.network)),
        local_(problem, hosts),
        uses_(problem.network.arcs.size(), 0) {}

  std::vector<TreePair> trees(bool stars) {
    std::fill(uses_.begin(), uses_.end(), 0);
    std::vector<TreePair> out;
    const bool rooted = has_root(problem_.collective);
    for (std::size_t number = 0; number < hosts_[0].local_roots.size(); ++number) {
      for (std::size_t centre = 0; centre < hosts_.size(); ++centre) {
        const std::vector<int>& ranks = hosts_[centre].ranks;
        int root = hosts_[centre].local_roots[number];
        if (rooted) {
          const auto found = std::find(ranks.begin(), ranks.end(), problem_.root);
          if (found == ranks.end()) continue;
          root = static_cast<int>(found - ranks.begin());
        }
        for (TreePair& pair : partition(number, centre, root, stars)) {
          pair.root = ranks[at(root)];
          out.push_back(std::move(pair));
        }
      }
    }
    return out;
  }

 private:
  std::vector<TreePair> partition(std::size_t number, std::size_t centre, int root, bool stars) {
    std::vector<TreePair> out;
    if (problem_.collective != Collective::kAllReduce) {
      // plan_tree() takes the trees of reduce over the reversed network as out-trees, too.
      const bool up = problem_.collective == Collective::kReduce;
      for (WholeTree& tree : one_direction(number, centre, root, up, stars)) {
        out.push_back({0, {}, std::move(tree.edges)});
      }
      return out;
    }
    std::vector<WholeTree> up = one_direction(number, centre, root, true, stars);
    std::vector<WholeTree> down = one_direction(number, centre, root, false, stars);
    // Both have the same shares where links are equal in both directions; else the shorter list
    // repeats.
    for (std::size_t i = 0; !up.empty() && !down.empty() && i < std::max(up.size(), down.size());
         ++i) {
      out.push_back({0, up[i % up.size()].edges, down[i % down.size()].edges});
    }
    return out;
  }

  std::vector<WholeTree> one_direction(std::size_t number, std::size_t centre, int root, bool up,
                                       bool stars) {
    const Network& network = up ? back_ : problem_.network;
    const Closure paths = paths_beside(network, uses_);
    const int from = hosts_[centre].ranks[at(hosts_[centre].local_roots[number])];
    std::vector<RoutedEdge> between;
    std::vector<std::vector<LocalTree>> within;
    for (std::size_t host = 0; host < hosts_.size(); ++host) {
      if (host == centre) {
        within.push_back(local_.from(host, root, up, stars));
        continue;
      }
      const int local_root = hosts_[host].local_roots[number];
      const int to = hosts_[host].ranks[at(local_root)];
      if (paths.costs()(from, to) >= CostMatrix::kUnreachable) {
        throw Error(Errc::kInvalidArgument,
                    "three-phase: {} and {} have no path that passes no other GPU",
                    name_of(problem_, from), name_of(problem_, to));
      }
      between.push_back({from, to, paths.path(from, to)});
      for (const int arc : between.back().arcs) ++uses_[at(arc)];
      within.push_back(local_.from(host, local_root, up, stars));
    }
    return joined_trees(within, between, centre);
  }

  const Problem& problem_;
  const std::vector<Host>& hosts_;
  Network back_;
  LocalTrees local_;
  std::vector<int> uses_;  // of arcs by hops between hosts
};

struct Weighed {
  std::vector<TreePair> trees;
  std::vector<double> weights;
  double rate = 0;
};

Weighed weighed(const Network& network, std::vector<TreePair> trees) {
  Weighed out;
  if (trees.empty()) return out;
  out.weights = best_weights(network, trees);
  out.rate = std::accumulate(out.weights.begin(), out.weights.end(), 0.0);
  out.trees = std::move(trees);
  return out;
}

}  // namespace

std::vector<Tree> plan_three_phase(const Problem& problem) {
  const Network& network = problem.network;
  if (network.num_ranks() > kMostThreePhaseRanks) {
    throw Error(Errc::kInvalidArgument, "three-phase: {} GPUs; {} is the limit of the search",
                network.num_ranks(), kMostThreePhaseRanks);
  }
  std::vector<Host> hosts = hosts_of(problem);
  choose_local_roots(problem, hosts);
  Partitions partitions(problem, hosts);
  // plan_tree() and the weights take reduce's trees as out-trees of the reversed network.
  const Network turned = problem.collective == Collective::kReduce ? reversed(network) : network;
  Weighed best = weighed(turned, partitions.trees(true));
  std::vector<TreePair> all = partitions.trees(false);
  all.insert(all.end(), best.trees.begin(), best.trees.end());
  Weighed more = weighed(turned, std::move(all));
  if (more.rate > best.rate * kWorthMoreTrees) best = std::move(more);
  const std::vector<Fraction> exact = exact_weights(turned, best.trees, best.weights);
  std::vector<Tree> out;
  for (std::size_t i = 0; i < best.trees.size(); ++i) {
    if (exact[i] > Fraction(0)) {
      out.push_back(plan_tree(turned, problem.collective, best.trees[i], exact[i]));
    }
  }
  return out;
}

}  // namespace ropewalk::plan
