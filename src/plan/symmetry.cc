#include "plan/symmetry.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "core/index.h"

namespace ropewalk::plan {

namespace {

using Renaming = std::vector<int>;

bool keeps(const Network& network, const ArcImages& arcs, const Renaming& renaming) {
  std::vector<bool> hit(network.arcs.size(), false);
  for (std::size_t i = 0; i < network.arcs.size(); ++i) {
    const int image = arcs.image(renaming, static_cast<int>(i));
    if (image < 0 || hit[at(image)] ||
        network.arcs[at(image)].capacity != network.arcs[i].capacity) {
      return false;
    }
    hit[at(image)] = true;
  }
  return std::all_of(network.ranks.begin(), network.ranks.end(),
                     [&](int node) { return network.is_rank(renaming[at(node)]); });
}

/// The nodes of every host in the topology's order, if all hosts have as many of the same kinds.
std::optional<std::vector<std::vector<int>>> alike_hosts(const topology::Topology& topology) {
  std::vector<std::vector<int>> hosts(at(topology.hosts()));
  for (std::size_t i = 0; i < topology.nodes().size(); ++i) {
    const topology::Node& node = topology.node(i);
    if (node.kind != topology::NodeKind::kNetwork)
      hosts[at(node.host)].push_back(static_cast<int>(i));
  }
  for (const std::vector<int>& host : hosts) {
    if (host.size() != hosts[0].size()) return std::nullopt;
    for (std::size_t i = 0; i < host.size(); ++i) {
      if (topology.node(at(host[i])).kind != topology.node(at(hosts[0][i])).kind) {
        return std::nullopt;
      }
    }
  }
  return hosts;
}

/// Permutations of 0..n-1 that move blocks of equal size as wholes and rotate within them, one for
/// every number; and the exclusive-or with every number where n is a power of two.
std::vector<std::vector<std::vector<int>>> candidate_groups(int n) {
  std::vector<std::vector<std::vector<int>>> out;
  if ((n & (n - 1)) == 0) {
    std::vector<std::vector<int>> group;
    for (int mask = 0; mask < n; ++mask) {
      group.emplace_back();
      for (int i = 0; i < n; ++i) group.back().push_back(i ^ mask);
    }
    out.push_back(std::move(group));
  }
  for (int inner = 1; inner <= n; ++inner) {
    if (n % inner != 0) continue;
    std::vector<std::vector<int>> group;
    for (int shift = 0; shift < n; ++shift) {
      group.emplace_back();
      for (int i = 0; i < n; ++i) {
        const int block = (i / inner + shift / inner) % (n / inner);
        group.back().push_back(block * inner + (i + shift) % inner);
      }
    }
    out.push_back(std::move(group));
  }
  return out;
}

/// Extends a permutation of one host's GPUs to its other nodes: nodes that the GPUs' indices tell
/// apart go where the same indices are; those that nothing tells apart keep their order.
class HostExtension {
 public:
  HostExtension(const topology::Topology& topology, const Network& network,
                const std::vector<int>& host)
      : topology_(topology), host_(host), local_(at(network.num_nodes), -1) {
    for (std::size_t i = 0; i < host.size(); ++i) local_[at(host[i])] = static_cast<int>(i);
    around_.resize(host.size());
    for (const Arc& arc : network.arcs) {
      const int from = local_[at(arc.from)];
      const int to = local_[at(arc.to)];
      if (from >= 0) around_[at(from)].emplace_back(0, arc.capacity, to);
      if (to >= 0) around_[at(to)].emplace_back(1, arc.capacity, from);
    }
  }

  /// By index in the host. @param gpus  indices of the host's ranks; order[i] goes to order of
  /// image
  std::optional<std::vector<int>> extend(const std::vector<int>& gpus,
                                         const std::vector<int>& permutation) const {
    std::vector<int> before = start(gpus, {});
    std::vector<int> after = start(gpus, permutation);
    for (std::size_t rounds = 0; rounds < host_.size(); ++rounds) {
      std::map<std::pair<int, std::vector<std::tuple<int, Capacity, int>>>, int> known;
      std::vector<int> next_before = refined(before, known);
      std::vector<int> next_after = refined(after, known);
      const bool stable = count(next_before) == count(before);
      before = std::move(next_before);
      after = std::move(next_after);
      if (stable) break;
    }
    std::map<int, std::vector<int>> from;
    std::map<int, std::vector<int>> to;
    for (std::size_t i = 0; i < host_.size(); ++i) {
      from[before[i]].push_back(static_cast<int>(i));
      to[after[i]].push_back(static_cast<int>(i));
    }
    std::vector<int> out(host_.size(), -1);
    for (const auto& [colour, members] : from) {
      const auto found = to.find(colour);
      if (found == to.end() || found->second.size() != members.size()) return std::nullopt;
      for (std::size_t i = 0; i < members.size(); ++i) out[at(members[i])] = found->second[i];
    }
    return out;
  }

 private:
  static std::size_t count(const std::vector<int>& colours) {
    return std::set<int>(colours.begin(), colours.end()).size();
  }

  /// GPU i has its own colour; under a permutation the colour lies on its image.
  [[nodiscard]] std::vector<int> start(const std::vector<int>& gpus,
                                       const std::vector<int>& permutation) const {
    std::vector<int> out;
    for (const int node : host_) {
      out.push_back(-1 - static_cast<int>(topology_.node(at(node)).kind));
    }
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      const std::size_t image = permutation.empty() ? i : at(permutation[i]);
      out[at(gpus[image])] = static_cast<int>(i);
    }
    return out;
  }

  [[nodiscard]] std::vector<int> refined(
      const std::vector<int>& colours,
      std::map<std::pair<int, std::vector<std::tuple<int, Capacity, int>>>, int>& known) const {
    std::vector<int> out;
    for (std::size_t i = 0; i < host_.size(); ++i) {
      std::vector<std::tuple<int, Capacity, int>> seen;
      for (const auto& [path, capacity, other] : around_[i]) {
        seen.emplace_back(path, capacity, other < 0 ? -1000 : colours[at(other)]);
      }
      std::sort(seen.begin(), seen.end());
      const auto size = static_cast<int>(known.size());
      out.push_back(known.emplace(std::pair(colours[i], std::move(seen)), size).first->second);
    }
    return out;
  }

  const topology::Topology& topology_;
  const std::vector<int>& host_;
  std::vector<int> local_;
  std::vector<std::vector<std::tuple<int, Capacity, int>>> around_;
};

int root_of(std::vector<int>& parent, int i) {
  while (parent[at(i)] != i) i = parent[at(i)] = parent[at(parent[at(i)])];
  return i;
}

void unite(std::vector<int>& parent, int a, int b) {
  a = root_of(parent, a);
  b = root_of(parent, b);
  parent[at(std::max(a, b))] = std::min(a, b);
}

void fill_classes(const Network& network, const ArcImages& arcs, Symmetry& out) {
  std::vector<int> arc_parent(network.arcs.size());
  std::iota(arc_parent.begin(), arc_parent.end(), 0);
  std::vector<int> rank_parent(network.ranks.size());
  std::iota(rank_parent.begin(), rank_parent.end(), 0);
  for (const Renaming& renaming : out.images) {
    for (std::size_t i = 0; i < network.arcs.size(); ++i) {
      unite(arc_parent, static_cast<int>(i), arcs.image(renaming, static_cast<int>(i)));
    }
    for (std::size_t i = 0; i < network.ranks.size(); ++i) {
      unite(rank_parent, static_cast<int>(i),
            network.rank_of_node[at(renaming[at(network.ranks[i])])]);
    }
  }
  std::map<int, int> number;
  for (std::size_t i = 0; i < network.arcs.size(); ++i) {
    const int root = root_of(arc_parent, static_cast<int>(i));
    const int index = number.emplace(root, static_cast<int>(number.size())).first->second;
    out.arc_class.push_back(index);
    out.arc_class_size.resize(number.size(), 0);
    ++out.arc_class_size[at(index)];
  }
  for (std::size_t i = 0; i < network.ranks.size(); ++i) {
    out.rank_class.push_back(root_of(rank_parent, static_cast<int>(i)));
  }
}

Renaming identity(const Network& network) {
  Renaming out(at(network.num_nodes));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

}  // namespace

ArcImages::ArcImages(const Network& network)
    : network_(network), leaving_(at(network.num_nodes)), position_(network.arcs.size(), 0) {
  for (std::size_t i = 0; i < network.arcs.size(); ++i) {
    leaving_[at(network.arcs[i].from)].emplace_back(network.arcs[i].to, static_cast<int>(i));
  }
  for (std::vector<std::pair<int, int>>& arcs : leaving_) {
    // Parallel arcs by capacity, so that an arc's image is one like it.
    std::sort(arcs.begin(), arcs.end(), [&](const auto& a, const auto& b) {
      return std::tuple(a.first, network.arcs[at(a.second)].capacity, a.second) <
             std::tuple(b.first, network.arcs[at(b.second)].capacity, b.second);
    });
    for (std::size_t i = 1; i < arcs.size(); ++i) {
      if (arcs[i].first == arcs[i - 1].first) {
        position_[at(arcs[i].second)] = position_[at(arcs[i - 1].second)] + 1;
      }
    }
  }
}

int ArcImages::image(const std::vector<int>& renaming, int arc) const {
  const Arc& from = network_.arcs[at(arc)];
  const std::vector<std::pair<int, int>>& arcs = leaving_[at(renaming[at(from.from)])];
  const int to = renaming[at(from.to)];
  auto found = std::lower_bound(arcs.begin(), arcs.end(), to,
                                [](const auto& entry, int node) { return entry.first < node; });
  found += std::min<std::ptrdiff_t>(position_[at(arc)], arcs.end() - found);
  return found == arcs.end() || found->first != to ? -1 : found->second;
}

Symmetry no_symmetry(const Network& network) {
  Symmetry out;
  out.images.push_back(identity(network));
  fill_classes(network, ArcImages(network), out);
  return out;
}

Symmetry find_symmetry(const topology::Topology& topology, const Network& network) {
  const std::optional<std::vector<std::vector<int>>> hosts = alike_hosts(topology);
  if (!hosts.has_value()) return no_symmetry(network);
  const ArcImages arcs(network);
  const int num_hosts = topology.hosts();

  // Host h to host h + shift. The first shift generates the others.
  const auto rotated = [&](const Renaming& first, int shift) {
    Renaming out = first;
    for (int host = 0; host < num_hosts; ++host) {
      for (std::size_t i = 0; i < (*hosts)[at(host)].size(); ++i) {
        const int node = (*hosts)[at(host)][i];
        // Where `first` takes it within its host, then to the other host.
        const std::vector<int>& home = (*hosts)[at(host)];
        const auto index =
            std::lower_bound(home.begin(), home.end(), first[at(node)]) - home.begin();
        out[at(node)] = (*hosts)[at((host + shift) % num_hosts)][static_cast<std::size_t>(index)];
      }
    }
    return out;
  };
  const bool hosts_alike = num_hosts > 1 && keeps(network, arcs, rotated(identity(network), 1));

  // GPUs of the first host that take part, by index.
  std::vector<int> gpus;
  for (std::size_t i = 0; i < (*hosts)[0].size(); ++i) {
    if (network.is_rank((*hosts)[0][i])) gpus.push_back(static_cast<int>(i));
  }
  std::vector<Renaming> local = {identity(network)};
  const HostExtension extension(topology, network, (*hosts)[0]);
  for (const auto& group : candidate_groups(static_cast<int>(gpus.size()))) {
    std::vector<Renaming> kept = {identity(network)};
    for (std::size_t i = 1; i < group.size(); ++i) {
      const auto indices = extension.extend(gpus, group[i]);
      if (!indices.has_value()) continue;
      Renaming whole = identity(network);
      for (const std::vector<int>& host : *hosts) {
        for (std::size_t node = 0; node < host.size(); ++node) {
          whole[at(host[node])] = host[at((*indices)[node])];
        }
      }
      if (keeps(network, arcs, whole)) kept.push_back(std::move(whole));
    }
    // A part of a group that is no group of its own would not treat ranks equally: its size then
    // does not divide the whole.
    if (kept.size() > local.size() && group.size() % kept.size() == 0) local = std::move(kept);
    if (local.size() == gpus.size()) break;
  }
  Symmetry out;
  for (const Renaming& within : local) {
    for (int shift = 0; shift < (hosts_alike ? num_hosts : 1); ++shift) {
      out.images.push_back(rotated(within, shift));
    }
  }
  fill_classes(network, arcs, out);
  return out;
}

}  // namespace ropewalk::plan
