// Packed spanning trees: near the best rate, with few trees, for any set of GPUs.
//
// G. Wang et al., "Blink: Fast and Generic Collectives for Distributed ML", MLSys 2020, arXiv
// 1910.04940. One root packs spanning trees by multiplicative weights; then as few trees as come
// within 5% are kept. All-reduce goes up and down the same trees at once. Over several hosts the
// trees are found in the whole graph; the paper's three phases are in plan/three_phase.h.
#pragma once

#include "plan/problem.h"

namespace ropewalk::plan {

/// A rate this close to the bound is near enough to stop adding trees.
inline constexpr double kPackedGap = 0.05;

/// Rate of fractional packing for `root` by multiplicative weights, and its trees with their
/// weights. N. Garg and J. Koenemann's method with step `epsilon`: within 1 - O(epsilon) of the
/// bound. With `most_trees` (not 0) it ends early when so many distinct ones were found.
struct FractionalPacking {
  std::vector<TreePair> trees;
  std::vector<double> weights;  ///< in Network::unit
  int searches = 0;             ///< cheapest-tree searches made
};
FractionalPacking pack_by_weights(const Network& network, Collective collective, int root,
                                  double epsilon, std::size_t most_trees = 0);

/// Broadcast, reduce and all_reduce as in the paper; Problem::trees_per_root is then the most trees
/// in all, and the best rate with so many is wanted. All_gather and reduce_scatter have equal trees
/// of all roots: the least number near the bound (plan/optimal.h), or, where links are not equal
/// in both directions, routed by common prices (plan/few_trees.h); Problem::trees_per_root is then
/// the most for each root.
std::vector<Tree> plan_packed(const Problem& problem);

}  // namespace ropewalk::plan
