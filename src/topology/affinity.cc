#include "topology/affinity.h"

#include <algorithm>
#include <map>

#include "core/error.h"

namespace ropewalk::topology {

std::vector<Placement> place_ranks(const Topology& topology, const Distances& distances, int host,
                                   int local_size) {
  if (host < 0 || host >= topology.hosts()) {
    throw Error(Errc::kInvalidArgument, "host {}: {} has {} hosts, numbered from 0", host,
                topology.name(), topology.hosts());
  }
  if (local_size < 1 || static_cast<std::size_t>(local_size) > kMaxNodes) {
    throw Error(Errc::kInvalidArgument, "{} ranks on a host: between 1 and {} can be", local_size,
                kMaxNodes);
  }
  const auto of_host = [&](std::vector<NodeIndex> nodes) {
    std::erase_if(nodes, [&](NodeIndex node) { return topology.node(node).host != host; });
    return nodes;
  };
  const std::vector<NodeIndex> gpus = of_host(topology.gpus());
  const std::vector<NodeIndex> cpus = of_host(topology.nodes_of(NodeKind::kCpu));
  const std::vector<NodeIndex> nics = of_host(topology.nodes_of(NodeKind::kNic));

  std::map<NodeIndex, int> uses;
  std::vector<Placement> placed;
  const auto size = static_cast<std::size_t>(local_size);
  for (std::size_t rank = 0; rank < size; ++rank) {
    Placement each;
    if (!gpus.empty()) {
      each.gpu = gpus[rank % gpus.size()];
      each.cpu = distances.nearest_cpu(*each.gpu);
    } else if (!cpus.empty()) {
      each.cpu = cpus[rank * cpus.size() / size];
    }
    const std::optional<NodeIndex> centre = each.gpu ? each.gpu : each.cpu;
    if (centre && !nics.empty()) {
      std::vector<Path> paths;
      for (const NodeIndex nic : nics) paths.push_back(distances.over_pcie(*centre, nic));
      each.nic_path =
          std::min_element(paths.begin(), paths.end(), [](const Path& a, const Path& b) {
            return a.path < b.path;
          })->path;
      for (std::size_t i = 0; i < nics.size(); ++i) {
        if (paths[i].path == each.nic_path) each.nics.push_back(nics[i]);
      }
      std::stable_sort(each.nics.begin(), each.nics.end(),
                       [&](NodeIndex a, NodeIndex b) { return uses[a] < uses[b]; });
      ++uses[each.nics.front()];
    }
    placed.push_back(std::move(each));
  }
  return placed;
}

}  // namespace ropewalk::topology
