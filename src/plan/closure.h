// Cheapest paths between ranks at given prices of arcs.
#pragma once

#include <optional>
#include <vector>

#include "plan/arborescence.h"
#include "plan/network.h"
#include "plan/symmetry.h"

namespace ropewalk::plan {

/// For every pair of ranks the cheapest path that passes no other rank, the shortest of several.
/// E. W. Dijkstra 1959, once per class of ranks.
class Closure {
 public:
  /// @param prices    of every arc, >= 0
  /// @param symmetry  equivalent arcs must have the same price; nullptr: no arcs are equivalent.
  /// Must outlive this
  Closure(const Network& network, const std::vector<double>& prices,
          const Symmetry* symmetry = nullptr);

  [[nodiscard]] const CostMatrix& costs() const { return costs_; }
  /// Arcs of the path, in order. @pre there is one
  [[nodiscard]] std::vector<int> path(int from_rank, int to_rank) const;

 private:
  void search(int rank, const std::vector<double>& prices);
  [[nodiscard]] std::vector<int> searched_path(int from_rank, int to_rank) const;

  const Network& network_;
  const Symmetry* symmetry_;
  CostMatrix costs_;
  std::vector<std::vector<int>> leaving_;
  // By rank, for those searched from: the arc by which the path enters each node.
  std::vector<std::vector<int>> last_arc_;
  // By rank: the renaming that takes its class's first rank to it, and that renaming backwards.
  std::vector<int> renaming_;
  std::vector<std::vector<int>> back_;
  std::optional<ArcImages> images_;
};

}  // namespace ropewalk::plan
