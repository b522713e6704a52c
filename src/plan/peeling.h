// Few trees at the best rate: the integer step of packed trees.
#pragma once

#include "core/types.h"
#include "plan/few_trees.h"
#include "plan/tree_program.h"

namespace ropewalk::plan {

/// Trees that reach the best rate of all trees, each as heavy as it can be.
///
/// Blink (arXiv 1910.04940, section 3.2) rounds the weights of a fractional packing by an integer
/// programme over the trees found. Here one tree is fixed at a time: the one that can carry most
/// while the others, on what it leaves of the links, still reach the rest of the best rate. Its
/// part of the links is taken away, and so on, until nothing is left. Each "most" is a linear
/// programme over all trees, made on demand (plan/simplex.h), in which that tree is worth slightly
/// more than others. The NVLinks of a full DGX-1 are so filled by 7 (P100) and 8 (V100) trees,
/// where the programme's own solution has up to 16.
///
/// For all_reduce and broadcast (`root`).
///
/// @param known  trees to begin with, as of the programme or of a packing by weights
/// @param most   at most so many trees, then below the best rate
/// @return no trees where the search would take long: many links
FewTrees peeled_trees(const Network& network, Collective collective, int root,
                      std::vector<TreePair> known, int most);

}  // namespace ropewalk::plan
