// The best rate of trees as a linear programme over all trees there are, with prices that prove it.
//
// One variable per tree (or pair of an in-tree and an out-tree), one row per link: the sum of the
// weights of the trees over it stays within its capacity. The trees are made on demand: at given
// prices of links the most useful tree is the cheapest spanning tree (plan/simplex.h,
// plan/arborescence.h). Switches neither copy nor add: a tree's edges are paths between ranks.
//
// This solves what cuts cannot: all-reduce, whose in-trees and out-trees share the links (the
// programme is the one of arXiv 2402.06787, written over trees in place of flows), and machines
// whose switches have more capacity in one direction than in the other.
#pragma once

#include <vector>

#include "core/types.h"
#include "plan/network.h"
#include "plan/out_tree.h"
#include "plan/symmetry.h"

namespace ropewalk::plan {

/// An out-tree of the network, an in-tree (as out-tree of the reversed network), or both.
struct TreePair {
  int root = 0;
  std::vector<RoutedEdge> in;  ///< over the reversed network
  std::vector<RoutedEdge> out;
};

struct TreeProgramSolution {
  std::vector<TreePair> trees;
  std::vector<Fraction> weights;  ///< of each tree, in Network::unit; all above zero
  Fraction rate;                  ///< their sum: algbw
  /// No weights of any trees sum to more than `bound`: prices of arcs >= 0 such that every tree
  /// costs at least 1 (all_gather: the cheapest trees of all ranks cost 1 on average).
  Fraction bound;
  std::vector<double> prices;  ///< of every arc
};

/// All-reduce by pairs with any roots; all-gather with the same rate for every rank; broadcast from
/// `root`. Reduce-scatter and reduce are those of the reversed network.
///
/// On networks with twin links both trees of an all-reduce pair are the same tree in both
/// directions: reversing a solution is a solution, so nothing is lost, and the root is free to be
/// its middle.
///
/// With a symmetry there is one row per class of links, and a tree stands for all its images, each
/// with an equal part of the weight: the mean of a solution over its images is a solution of the
/// same rate, so nothing is lost. The result has all images. Not for broadcast, whose root is not
/// like others.
TreeProgramSolution solve_tree_program(const Network& network, Collective collective, int root,
                                       const Symmetry* symmetry = nullptr);

/// A tree under a renaming of the nodes.
TreePair image_of(const Network& network, const ArcImages& arcs, const std::vector<int>& renaming,
                  const TreePair& tree);

/// The best weights of given trees alone. Weights may be zero.
std::vector<double> best_weights(const Network& network, const std::vector<TreePair>& trees);

/// Exact weights near `amounts` that keep within all links: simple fractions where they fit, else
/// rounded down.
std::vector<Fraction> exact_weights(const Network& network, const std::vector<TreePair>& trees,
                                    const std::vector<double>& amounts,
                                    const Symmetry* symmetry = nullptr);

/// The simplest fraction within `tolerance` (relative) of a number above zero. Continued fractions.
Fraction simplest_near(double value, double tolerance);

/// The cheapest trees at given prices of arcs. Used by all that packs trees by prices.
class TreeFinder {
 public:
  TreeFinder(const Network& network, const std::vector<double>& prices,
             const Symmetry* symmetry = nullptr);
  ~TreeFinder();
  TreeFinder(const TreeFinder&) = delete;
  TreeFinder& operator=(const TreeFinder&) = delete;

  /// An out-tree of `root`.
  [[nodiscard]] std::pair<TreePair, double> out_tree(int root) const;
  /// An in-tree and an out-tree of `root`.
  [[nodiscard]] std::pair<TreePair, double> pair(int root) const;
  /// One tree used in both directions, rooted at its middle.
  [[nodiscard]] std::pair<TreePair, double> mirrored() const;

 private:
  struct Parts;
  Parts* parts_;
};

/// How often a tree pair passes each arc: (arc, times).
std::vector<std::pair<int, int>> arc_uses(const TreePair& tree);

}  // namespace ropewalk::plan
