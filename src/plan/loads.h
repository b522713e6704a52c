// What trees put on links.
#pragma once

#include <vector>

#include "plan/plan.h"
#include "topology/topology.h"

namespace ropewalk::plan {

/// Load and capacity of `links` (indices into Topology::links), by index.
std::vector<LinkLoad> link_loads(const topology::Topology& topology, std::vector<int> links,
                                 const std::vector<Tree>& trees);

/// Whether the plan's rate is its bound, within 1e-6 of it: plans of the linear programme are
/// rounded.
bool is_at_bound(const Plan& plan);

}  // namespace ropewalk::plan
