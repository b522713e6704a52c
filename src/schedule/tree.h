// Trees over nodes 0..n-1 with their root at node 0, and the steps that move data along one.
//
// A tree has node numbers only; `order[node]` is the rank at a node.
#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace ropewalk::schedule {

struct Tree {
  std::vector<int> parent;  ///< -1 for the root
  std::vector<std::vector<int>> children;
  std::vector<int> depth;  ///< hops to the root
  [[nodiscard]] int size() const { return static_cast<int>(parent.size()); }
  [[nodiscard]] int height() const;  ///< the largest depth
};

/// Fills in children and depth. Children are sorted by node.
Tree tree_of(std::vector<int> parent);

/// A chain: the parent of node v is v - 1.
Tree path_tree(int size);

/// The heap: node v has the children 2v+1 and 2v+2.
Tree heap_tree(int size);

/// The in-order binary tree below a root with one child: node v > 0 with lowest set bit b has the
/// parent v - b + 2b where that is a node, else v - b. Odd nodes are leaves. Sanders, Speck,
/// Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009).
Tree in_order_tree(int size);

// Each adds one channel's steps of every rank. Broadcast and reduce move block 0 in one part and
// pipeline over the chunks.
void add_tree_broadcast(Schedule& schedule, int channel, const Tree& tree,
                        const std::vector<int>& order);
void add_tree_reduce(Schedule& schedule, int channel, const Tree& tree,
                     const std::vector<int>& order);

// Scatter and gather: a message for each block and hop. Over each link go the blocks of all ranks
// below it one after the other, each rank's after those below it (along a path: the furthest
// first), so that a transport that joins messages sends them together. An inner rank of a gather
// has by then waited for all that it passes on.
void add_tree_scatter(Schedule& schedule, int channel, const Tree& tree,
                      const std::vector<int>& order);
void add_tree_gather(Schedule& schedule, int channel, const Tree& tree,
                     const std::vector<int>& order);

/// Reduce to the root and broadcast back. A rank runs its steps strictly in order, so a list
/// "reduce, broadcast" of one block would make each chunk wait for the whole round trip. The
/// broadcast of a part therefore stands behind the reduction of a later one: at depth d, d parts
/// later, which is how long the round trip takes when up and down steps alternate. A child lags one
/// part more than its parent, so FIFOs of 2 chunks are enough.
void add_tree_all_reduce(Schedule& schedule, int channel, const Tree& tree,
                         const std::vector<int>& order);

/// The same along two trees with the same root: up the in-tree (given as the out-tree of its
/// reversal), down the out-tree. Node numbers of the two are unrelated. At time t a rank sends up
/// part t - a and down part t - b, where a is how much nearer than the deepest rank it is to the
/// root, and b is when that part's sum can have come back to it. Every receive is one time after
/// its send, so FIFOs of 2 chunks are enough, also where a link serves both trees.
void add_tree_pair_all_reduce(Schedule& schedule, int channel, const Tree& up,
                              const std::vector<int>& up_order, const Tree& down,
                              const std::vector<int>& down_order);

/// Parts for add_tree_all_reduce on trees of that height: enough that filling and draining the
/// lag costs at most about a fifth, few enough that the lists stay short.
int tree_all_reduce_parts(int height);

}  // namespace ropewalk::schedule
