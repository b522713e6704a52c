// A spanning out-tree over a network: what every planning algorithm yields.
//
// In-trees (for reductions) are out-trees of the reversed network, so algorithms know one
// direction.
#pragma once

#include <vector>

#include "plan/fraction.h"
#include "plan/network.h"

namespace ropewalk::plan {

/// Data goes from a rank to a rank along arcs of the network.
struct RoutedEdge {
  int parent = 0;         ///< rank
  int child = 0;          ///< rank
  std::vector<int> arcs;  ///< indices into Network::arcs, in the order from parent to child

  friend bool operator==(const RoutedEdge&, const RoutedEdge&) = default;
};

struct OutTree {
  int root = 0;                   ///< rank
  Fraction weight;                ///< in Network::unit
  std::vector<RoutedEdge> edges;  ///< parents before children
};

/// Sum of the weights.
inline Fraction total_weight(const std::vector<OutTree>& trees) {
  Fraction sum = 0;
  for (const OutTree& tree : trees) {
    sum += tree.weight;
  }
  return sum;
}

}  // namespace ropewalk::plan
