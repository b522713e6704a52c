// The machine of a group on several hosts that nobody described, as far as plans for host memory
// differ by it: which ranks share a host. Known from joining: no look at any host is needed.
//
// A rank is a node that holds data, on its host's memory; each host has one way to the others. What
// that way and memory carry is the cost model's business, which prices plans and shapes alike by
// measured rates and each rank's work (cost_model.h); for planning it is enough that memory carries
// ten times as much. So groups placed alike have the same plans, whatever was measured.
#pragma once

#include <span>

#include "topology/topology.h"

namespace ropewalk::tune {

/// Rank r is gpus()[r].
/// @param host_of_rank hosts from 0 on, at least one rank
topology::Topology hosts_machine(std::span<const int> host_of_rank);

}  // namespace ropewalk::tune
