// A machine for groups on several hosts without a description: it says only which ranks share a
// host, which joining has found. That is all on which plans for host memory depend.
//
// A rank is a node that holds data, on its host's memory; each host has one link to the others. The
// capacities are nominal: memory carries ten times as much as the link. The cost model prices plans
// and shapes by measured rates and each rank's work (cost_model.h). So groups with the same hosts
// have the same plans, whatever was measured.
#pragma once

#include <span>

#include "topology/topology.h"

namespace ropewalk::tune {

/// Rank r is gpus()[r].
/// @param host_of_rank hosts from 0 on, at least one rank
topology::Topology hosts_machine(std::span<const int> host_of_rank);

}  // namespace ropewalk::tune
