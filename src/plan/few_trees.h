// Few trees that together come near the best rate.
#pragma once

#include <vector>

#include "core/types.h"
#include "plan/tree_program.h"

namespace ropewalk::plan {

/// At most `count` trees (pairs, for all_reduce) with the best weights found for them.
///
/// Trees of equal weight are routed one after another by prices that grow exponentially with the
/// load of links, then taken out and routed again while that lowers the largest load (the routing
/// by multiplicative weights of N. Garg and J. Koenemann, FOCS 1998, with `count` steps and
/// repair). Their weights are the optimum of the linear programme over these trees alone.
///
/// For all_reduce and broadcast (`root`). Reduce is broadcast on the reversed network.
struct FewTrees {
  std::vector<TreePair> trees;
  std::vector<Fraction> weights;
  Fraction rate;
};
///
/// @param thorough  tries more, for a few percent and ten times the time
FewTrees few_trees(const Network& network, Collective collective, int root, int count,
                   bool thorough = false);

/// For all_gather: `per_root` trees of every rank, all of the same weight.
FewTrees few_trees_of_all(const Network& network, int per_root);

}  // namespace ropewalk::plan
