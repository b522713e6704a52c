// The cheapest spanning out-tree of a directed graph.
#pragma once

#include <vector>

namespace ropewalk::plan {

/// Costs of direct arcs between all pairs of ranks; kUnreachable where there is none.
class CostMatrix {
 public:
  static constexpr double kUnreachable = 1e300;

  explicit CostMatrix(int ranks)
      : ranks_(ranks),
        costs_(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks), kUnreachable) {}

  [[nodiscard]] int ranks() const { return ranks_; }
  double& operator()(int from, int to) { return costs_[index(from, to)]; }
  double operator()(int from, int to) const { return costs_[index(from, to)]; }

 private:
  [[nodiscard]] std::size_t index(int from, int to) const {
    return static_cast<std::size_t>(from) * static_cast<std::size_t>(ranks_) +
           static_cast<std::size_t>(to);
  }
  int ranks_;
  std::vector<double> costs_;
};

/// parent[r] for every rank, -1 at the root, of the cheapest tree in which `root` reaches all.
///
/// Y. J. Chu and T. H. Liu 1965, J. Edmonds 1967; contraction of cycles, O(ranks^2) per level.
/// @pre there is such a tree
std::vector<int> cheapest_out_tree(const CostMatrix& costs, int root);

/// Sum of the costs of its arcs.
double cost_of(const CostMatrix& costs, const std::vector<int>& parents);

}  // namespace ropewalk::plan
