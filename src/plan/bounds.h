// What no schedule can exceed, proven by a cut.
#pragma once

#include <vector>

#include "plan/fraction.h"
#include "plan/network.h"

namespace ropewalk::plan {

/// A set of nodes with the links that leave it.
struct Cut {
  std::vector<bool> inside;  ///< by node
  Capacity capacity = 0;     ///< sum over the arcs that leave it, in Network::unit
  int ranks_inside = 0;
};

/// A rate in Network::unit, with the cut that it cannot exceed.
struct CutBound {
  Fraction rate;
  Cut cut;
};

/// The largest rate x at which every rank can send its own part to all others while all do so:
/// min over cuts S with a rank outside of capacity(S) / ranks(S). All-gather's algbw is N x.
///
/// The bound: C. Zhao et al., "ForestColl", arXiv 2402.06787, theorem on optimality. The search:
/// W. Dinkelbach's method for ratios (Management Science 13, 1967): guess x, test by max-flow from
/// a source that gives x to every rank, take the ratio of a violated cut as next guess. Each guess
/// is the ratio of a real cut, so the result is exact.
///
/// @param sinks  ranks of which every other rank is an image under a symmetry; empty: all ranks
CutBound all_gather_bound(const Network& network, std::vector<int> sinks = {});

/// min over v of max-flow(root, v): broadcast's algbw. J. Edmonds, "Edge-disjoint branchings",
/// 1973.
CutBound broadcast_bound(const Network& network, int root);

/// Capacity and ranks of the cut with this inside.
Cut measure_cut(const Network& network, std::vector<bool> inside);

}  // namespace ropewalk::plan
