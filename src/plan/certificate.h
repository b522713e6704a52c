// Is a plan what it says? An independent check, which shares no code with the algorithms.
//
// It reads the plan and the topology only: no network, no flow, no packing. What it proves: every
// tree spans all ranks along links that exist and join up; the weights add up to the rate; no link
// carries more than its capacity; and the bound holds, since the links of the cut separate the
// ranks inside from those outside (or since every tree costs at least its price at the given
// prices). A plan whose rate is such a bound cannot be beaten.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"
#include "topology/topology.h"

namespace ropewalk::plan {

struct Certificate {
  bool valid = false;                ///< trees, weights and loads are right: the rate can be had
  bool bound_holds = false;          ///< no plan is faster than the bound
  bool optimal = false;              ///< both, and the rate is the bound (within 1e-6 of it)
  double largest_load = 0;           ///< of any link, relative to its capacity
  std::vector<std::string> defects;  ///< one sentence each
};

Certificate check(const topology::Topology& topology, const Plan& plan);

}  // namespace ropewalk::plan
