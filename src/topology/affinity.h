// The resources of each rank of a host: its GPU, the CPUs and memory next to it, its NIC.
#pragma once

#include <optional>
#include <vector>

#include "topology/distance.h"
#include "topology/topology.h"

namespace ropewalk::topology {

struct Placement {
  std::optional<NodeIndex> gpu;  ///< empty on a host without GPUs
  std::optional<NodeIndex> cpu;  ///< NUMA node
  std::vector<NodeIndex> nics;   ///< the nearest, the chosen one first; empty without NICs
  PathClass nic_path = PathClass::kNone;
};

/// Placements of `local_size` ranks of one host, by local rank.
///
/// Rank r gets GPU r of the host (in turn, where ranks outnumber GPUs), the GPU's NUMA node, and of
/// the NICs that are nearest the one that fewest ranks have so far. Without GPUs, ranks are spread
/// over the NUMA nodes in order.
///
/// @throws Error kInvalidArgument for a host or size that is not there, a host without CPUs
std::vector<Placement> place_ranks(const Topology& topology, const Distances& distances, int host,
                                   int local_size);

}  // namespace ropewalk::topology
