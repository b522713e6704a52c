// Packing spanning out-trees into a network of ranks.
#pragma once

#include <utility>
#include <vector>

#include "plan/edge_splitting.h"

namespace ropewalk::plan {

/// `multiplicity` equal trees of one unit each.
struct Batch {
  int root = 0;
  Capacity multiplicity = 0;
  std::vector<std::pair<int, int>> edges;  ///< (from rank, to rank), parents before children
};

/// Trees with supplies[r] units rooted at rank r, each spanning all ranks, that together keep
/// within the capacities of `network`.
///
/// K. Berczi and A. Frank, "Packing arborescences", RIMS Kokyuroku Bessatsu B23 (2010), as used by
/// ForestColl (arXiv 2402.06787): batches of equal partial trees grow by one edge at a time; a
/// max-flow says how many of a batch may take the edge without leaving some set of ranks too few
/// links into the tree for what is still to come. It never goes back on a choice.
///
/// Edges close to the root are tried first, so that trees are flat where there is a choice.
///
/// @pre every rank can get all supplies in `network` (Edmonds' condition)
std::vector<Batch> pack_trees(const SplitNetwork& network, const Supplies& supplies);

}  // namespace ropewalk::plan
