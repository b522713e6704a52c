// Why a plan cannot be faster, in words: "the 4 PCIe uplinks of socket 0 limit this".
#pragma once

#include "plan/bounds.h"
#include "plan/plan.h"
#include "topology/topology.h"

namespace ropewalk::plan {

/// A cut of the network as the plan tells it.
/// @param backwards  the cut is of the reversed network: data must enter it
Bottleneck describe_cut(const topology::Topology& topology, const Network& network, const Cut& cut,
                        bool backwards);

/// Links in words, grouped: "the 2 PCIe uplinks of socket 0 and the NVLink of gpu3".
std::string name_links(const topology::Topology& topology, const std::vector<int>& links);

}  // namespace ropewalk::plan
