// The order in which ranks work on several trees at once, so that one channel can serve them all.
//
// In an all-gather every rank is the root of one tree and a node of all the others. A rank runs
// its steps strictly in order, so the order decides how long chunks wait, and whether ranks wait
// for each other in a circle.
#pragma once

#include <utility>
#include <vector>

#include "schedule/tree.h"

namespace ropewalk::schedule {

/// An out-tree over all ranks: `order[node]` is the rank at a node of `tree`, `node[rank]` the
/// inverse.
struct RankedTree {
  Tree tree;
  std::vector<int> order;
  std::vector<int> node;
};

/// For every rank, the indices of the trees in the order in which the rank handles their blocks
/// (takes it from its parent, hands it to its children).
///
/// The order is that of a run in which every rank does one step per tick and links hold `slots`
/// chunks; among what a rank could do it takes the block that has furthest to go. That run is a
/// proof that the order cannot deadlock. Should ranks get stuck in it, all handle the trees in the
/// order of their indices instead: then a step waits only for steps of earlier trees, or nearer to
/// the root of its own, which cannot be a circle.
///
/// Backwards (each list reversed, each link turned round) the same orders serve in-trees: the run
/// played backwards needs no more slots.
std::vector<std::vector<int>> tree_order(const std::vector<RankedTree>& trees, int num_ranks,
                                         int slots = 2);

}  // namespace ropewalk::schedule
