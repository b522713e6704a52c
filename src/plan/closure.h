// Cheapest ways between ranks at given prices of arcs.
#pragma once

#include <vector>

#include "plan/arborescence.h"
#include "plan/network.h"

namespace ropewalk::plan {

/// For every pair of ranks the cheapest path that passes no other rank, the shortest of several.
/// E. W. Dijkstra 1959, once per rank.
class Closure {
 public:
  /// @param prices  of every arc, >= 0
  Closure(const Network& network, const std::vector<double>& prices);

  [[nodiscard]] const CostMatrix& costs() const { return costs_; }
  /// Arcs of the path, in order. @pre there is one
  [[nodiscard]] std::vector<int> path(int from_rank, int to_rank) const;

 private:
  const Network& network_;
  CostMatrix costs_;
  std::vector<int> last_arc_;  // by (rank, node): the arc by which the path from rank enters node
};

}  // namespace ropewalk::plan
