#include "plan/shaped_trees.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "core/error.h"
#include "core/index.h"
#include "plan/closure.h"

namespace ropewalk::plan {

namespace {

/// The path between two ranks that costs the links least time: wide links are cheap.
Closure widest_paths(const Problem& problem) {
  std::vector<double> prices;
  for (const Arc& arc : problem.network.arcs) {
    prices.push_back(1.0 / static_cast<double>(arc.capacity));
  }
  return Closure(problem.network, prices, &problem.symmetry());
}

/// Equal weights as large as the links allow. `up` are the same trees over the reversed network.
std::vector<Tree> weighed(const Problem& problem, std::vector<OutTree> up,
                          std::vector<OutTree> down) {
  const Network& network = problem.network;
  std::vector<Fraction> load(network.arcs.size(), 0);
  for (const std::vector<OutTree>* trees : {&up, &down}) {
    for (const OutTree& tree : *trees) {
      for (const RoutedEdge& edge : tree.edges) {
        for (const int arc : edge.arcs) load[at(arc)] += tree.weight;
      }
    }
  }
  Fraction worst = 0;
  for (std::size_t i = 0; i < load.size(); ++i) {
    worst = std::max(worst, load[i] / Fraction(network.arcs[i].capacity));
  }
  for (std::vector<OutTree>* trees : {&up, &down}) {
    for (OutTree& tree : *trees) tree.weight /= worst;
  }
  if (down.empty()) return reduce_trees(network, up);
  if (up.empty()) return broadcast_trees(network, down);
  return zip_trees(network, up, down);
}

/// parent[i] over `nodes` numbers in the first of the two trees, -1 at the root 0: clear the lowest
/// set bit and set the next; if there is no such number, only clear it.
std::vector<int> first_tree(int nodes) {
  std::vector<int> parent(at(nodes), -1);
  for (int i = 1; i < nodes; ++i) {
    const int bit = i & -i;
    const int up = (i ^ bit) | (bit << 1);
    parent[at(i)] = up < nodes ? up : i ^ bit;
  }
  return parent;
}

/// The second tree: the first mirrored (even number of nodes) or shifted by one (odd).
std::vector<int> second_tree(int nodes) {
  const std::vector<int> first = first_tree(nodes);
  std::vector<int> parent(at(nodes), -1);
  const auto image = [&](int i) { return nodes % 2 == 0 ? nodes - 1 - i : (i + 1) % nodes; };
  for (int i = 0; i < nodes; ++i) {
    if (first[at(i)] >= 0) parent[at(image(i))] = image(first[at(i)]);
  }
  return parent;
}

/// Parents of ranks hung up anew at `root`: the tree without directions is the same.
std::vector<int> hung_at(const std::vector<int>& parents, int root) {
  std::vector<int> out = parents;
  int above = -1;
  for (int rank = root; rank >= 0;) {
    const int next = parents[at(rank)];
    out[at(rank)] = above;
    above = rank;
    rank = next;
  }
  return out;
}

/// The tree along the paths between ranks.
/// @throws Error kInvalidArgument naming two GPUs without a path that passes no other
OutTree routed(const Problem& problem, const Closure& paths, const std::vector<int>& parents,
               int root, bool reversed) {
  OutTree out{root, 1, {}};
  std::vector<int> order{root};
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (std::size_t rank = 0; rank < parents.size(); ++rank) {
      if (parents[rank] != order[i]) continue;
      const int child = static_cast<int>(rank);
      const double cost =
          reversed ? paths.costs()(child, order[i]) : paths.costs()(order[i], child);
      if (cost >= CostMatrix::kUnreachable) {
        const std::vector<int>& nodes = problem.network.ranks;
        throw Error(Errc::kInvalidArgument,
                    "trees of this shape: {} and {} have no path that passes no other GPU",
                    problem.topology.node(at(nodes[at(order[i])])).id,
                    problem.topology.node(at(nodes[rank])).id);
      }
      RoutedEdge edge{order[i], child, {}};
      edge.arcs = reversed ? paths.path(child, order[i]) : paths.path(order[i], child);
      if (reversed) std::reverse(edge.arcs.begin(), edge.arcs.end());
      out.edges.push_back(std::move(edge));
      order.push_back(child);
    }
  }
  return out;
}

bool goes_up(Collective collective) { return reduces(collective); }
bool goes_down(Collective collective) {
  return collective != Collective::kReduce && collective != Collective::kReduceScatter;
}

}  // namespace

std::vector<Tree> plan_binary_tree(const Problem& problem) {
  const Network& network = problem.network;
  const int ranks = network.num_ranks();
  // Ranks by host; the first of each host is its end of the tree between hosts.
  std::map<int, std::vector<int>> hosts;
  for (int rank = 0; rank < ranks; ++rank) {
    hosts[problem.topology.node(at(network.ranks[at(rank)])).host].push_back(rank);
  }
  std::vector<std::vector<int>> groups;
  if (hosts.size() == 1) {
    for (int rank = 0; rank < ranks; ++rank) groups.push_back({rank});
  } else {
    for (auto& [host, members] : hosts) groups.push_back(members);
  }
  const int nodes = static_cast<int>(groups.size());
  const Closure paths = widest_paths(problem);
  std::vector<OutTree> up;
  std::vector<OutTree> down;
  int chain_start = 0;
  for (const std::vector<int>& between : {first_tree(nodes), second_tree(nodes)}) {
    std::vector<int> parents(at(ranks), -1);
    int root = 0;
    for (int node = 0; node < nodes; ++node) {
      // The two trees begin their chains at different GPUs, as channels do at different NICs.
      const std::vector<int>& members = groups[at(node)];
      const std::size_t first = at(chain_start) % members.size();
      for (std::size_t i = 1; i < members.size(); ++i) {
        parents[at(members[(first + i) % members.size()])] =
            members[(first + i - 1) % members.size()];
      }
      const int above = between[at(node)];
      if (above < 0) {
        root = members[first];
      } else {
        parents[at(members[first])] = groups[at(above)][at(chain_start) % groups[at(above)].size()];
      }
    }
    if (has_root(problem.collective)) {
      parents = hung_at(parents, problem.root);
      root = problem.root;
    }
    if (goes_up(problem.collective)) up.push_back(routed(problem, paths, parents, root, true));
    if (goes_down(problem.collective)) down.push_back(routed(problem, paths, parents, root, false));
    ++chain_start;
  }
  return weighed(problem, std::move(up), std::move(down));
}

std::vector<Tree> plan_one_hop(const Problem& problem) {
  const Network& network = problem.network;
  const int ranks = network.num_ranks();
  const Closure paths = widest_paths(problem);
  std::vector<OutTree> up;
  std::vector<OutTree> down;
  for (int centre = 0; centre < ranks; ++centre) {
    std::vector<int> parents(at(ranks), centre);
    parents[at(centre)] = -1;
    int root = centre;
    if (has_root(problem.collective)) {
      root = problem.root;
      // A star around the root would send everything out of it once for each rank.
      if (centre == root && ranks > 2) continue;
      parents = hung_at(parents, root);
    }
    if (goes_up(problem.collective)) up.push_back(routed(problem, paths, parents, root, true));
    if (goes_down(problem.collective)) down.push_back(routed(problem, paths, parents, root, false));
  }
  return weighed(problem, std::move(up), std::move(down));
}

std::vector<Tree> plan_rail_chain(const Problem& problem) {
  const Network& network = problem.network;
  const int ranks = network.num_ranks();
  std::map<int, std::vector<int>> by_host;
  for (int rank = 0; rank < ranks; ++rank) {
    by_host[problem.topology.node(at(network.ranks[at(rank)])).host].push_back(rank);
  }
  // The root's host comes first.
  std::vector<std::vector<int>> hosts;
  std::size_t rails = 0;
  for (auto& [host, members] : by_host) {
    rails = std::max(rails, members.size());
    hosts.push_back(members);
    if (std::find(members.begin(), members.end(), problem.root) != members.end()) {
      std::rotate(hosts.begin(), hosts.end() - 1, hosts.end());
    }
  }
  const bool rooted = has_root(problem.collective);
  const Closure paths = widest_paths(problem);
  std::vector<OutTree> up;
  std::vector<OutTree> down;
  for (std::size_t rail = 0; rail < rails; ++rail) {
    std::vector<int> parents(at(ranks), -1);
    int root = hosts[0][rail % hosts[0].size()];
    int before = -1;  // the GPU of the host before that is on this rail
    if (rooted) {
      before = root == problem.root ? -1 : problem.root;
      root = problem.root;
    }
    for (const std::vector<int>& members : hosts) {
      const std::size_t first = rail % members.size();
      int last = members[first];
      parents[at(last)] = before;
      before = last;
      for (std::size_t i = 1; i < members.size(); ++i) {
        const int next = members[(first + i) % members.size()];
        if (next == root) continue;  // has the data already
        parents[at(next)] = last;
        last = next;
      }
    }
    if (goes_up(problem.collective)) up.push_back(routed(problem, paths, parents, root, true));
    if (goes_down(problem.collective)) down.push_back(routed(problem, paths, parents, root, false));
  }
  return weighed(problem, std::move(up), std::move(down));
}

}  // namespace ropewalk::plan
