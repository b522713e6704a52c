// Trees that reach the bound exactly: switches removed by edge splitting, then trees packed.
//
// C. Zhao et al., "ForestColl: Throughput-Optimal Collective Communications on Heterogeneous
// Network Fabrics", arXiv 2402.06787.
#pragma once

#include <vector>

#include "plan/bounds.h"
#include "plan/out_tree.h"

namespace ropewalk::plan {

/// For all-gather: trees of every rank, all ranks at the same rate, summing to N x bound.rate.
/// @pre switches_are_balanced(network), bound == all_gather_bound(network)
std::vector<OutTree> pack_all_gather(const Network& network, const CutBound& bound);

/// For broadcast: trees of `root`, summing to bound.rate.
/// @pre switches_are_balanced(network), bound == broadcast_bound(network, root)
std::vector<OutTree> pack_broadcast(const Network& network, int root, const CutBound& bound);

/// The best rate at which every link carries a whole number of equal trees, `supplies[r]` of them
/// rooted at rank r. Few trees are often close to the optimum, and cheap to run.
///
/// Every rank with a supply sends supplies[r] trees of the same weight. ForestColl's fixed-k
/// variant: the smallest U such that the capacities floor(U b) still let every rank have
/// everything. U b is whole for some link b at the optimum, so a search over the reals ends with
/// few candidates.
///
/// @param rate_limit the exact bound for all supplies together, in Network::unit
/// @pre every link has a twin of the same capacity (rounding down keeps switches balanced)
std::vector<OutTree> pack_fixed(const Network& network, const Supplies& supplies,
                                const Fraction& rate_limit);

/// The rate of pack_fixed, without packing: sum of supplies / U.
Fraction fixed_rate(const Network& network, const Supplies& supplies, const Fraction& rate_limit);

/// Whether every arc has arcs of the same total capacity in the other direction.
bool is_symmetric(const Network& network);

}  // namespace ropewalk::plan
