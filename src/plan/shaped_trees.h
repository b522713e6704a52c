// Trees whose shape is given by rank numbers alone, laid onto the links that there are.
#pragma once

#include "plan/problem.h"

namespace ropewalk::plan {

/// Double binary trees, as NCCL builds them between nodes: two trees in which every node but one is
/// a leaf in one of the two; inside a node a chain of its GPUs. P. Sanders, J. Speck and J. L.
/// Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
/// Computing 35, 2009. On one host the trees are over its GPUs. For all_reduce, broadcast and
/// reduce.
std::vector<Tree> plan_binary_tree(const Problem& problem);

/// One-hop trees (Blink, arXiv 1910.04940, for switches that join all GPUs): every rank is the
/// centre of a star. Two hops in an all-reduce, whatever the number of ranks. Broadcast and reduce
/// have a tree per rank: the root's link to it, and its star.
///
/// @throws Error kInvalidArgument unless every two GPUs have a path through switches
std::vector<Tree> plan_one_hop(const Problem& problem);

/// Chains along rails: tree i goes from host to host by GPU i of each, and inside every host on by
/// a chain of its GPUs. Every link carries each tree once at most, so that all NICs of many equal
/// hosts work for one root. For broadcast, reduce and all_reduce.
std::vector<Tree> plan_rail_chain(const Problem& problem);

}  // namespace ropewalk::plan
