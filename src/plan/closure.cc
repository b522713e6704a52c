#include "plan/closure.h"

#include <algorithm>
#include <queue>
#include <tuple>

#include "core/index.h"

namespace ropewalk::plan {

Closure::Closure(const Network& network, const std::vector<double>& prices,
                 const Symmetry* symmetry)
    : network_(network),
      symmetry_(symmetry != nullptr && !symmetry->is_trivial() ? symmetry : nullptr),
      costs_(network.num_ranks()),
      leaving_(at(network.num_nodes)),
      last_arc_(at(network.num_ranks())) {
  for (std::size_t i = 0; i < network.arcs.size(); ++i) {
    if (network.arcs[i].capacity > 0) {
      leaving_[at(network.arcs[i].from)].push_back(static_cast<int>(i));
    }
  }
  const int ranks = network.num_ranks();
  if (symmetry_ == nullptr) {
    for (int rank = 0; rank < ranks; ++rank) search(rank, prices);
    return;
  }
  images_.emplace(network);
  renaming_.assign(at(ranks), -1);
  back_.resize(at(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    if (symmetry_->rank_class[at(rank)] == rank) search(rank, prices);
  }
  for (std::size_t g = 0; g < symmetry_->images.size(); ++g) {
    const std::vector<int>& renaming = symmetry_->images[g];
    for (int first = 0; first < ranks; ++first) {
      if (symmetry_->rank_class[at(first)] != first) continue;
      const int image = network.rank_of_node[at(renaming[at(network.ranks[at(first)])])];
      if (renaming_[at(image)] >= 0) continue;
      renaming_[at(image)] = static_cast<int>(g);
      back_[at(image)].resize(at(ranks));
      for (int rank = 0; rank < ranks; ++rank) {
        const int to = network.rank_of_node[at(renaming[at(network.ranks[at(rank)])])];
        back_[at(image)][at(to)] = rank;
        if (rank != first) costs_(image, to) = costs_(first, rank);
      }
    }
  }
}

void Closure::search(int rank, const std::vector<double>& prices) {
  using Entry = std::tuple<double, int, int>;  // cost, arcs, node
  std::vector<std::pair<double, int>> best(at(network_.num_nodes), {CostMatrix::kUnreachable, 0});
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
  const int start = network_.ranks[at(rank)];
  best[at(start)] = {0, 0};
  open.emplace(0, 0, start);
  std::vector<int>& entered_by = last_arc_[at(rank)];
  entered_by.assign(at(network_.num_nodes), -1);
  while (!open.empty()) {
    const auto [cost, hops, node] = open.top();
    open.pop();
    if (std::pair(cost, hops) > best[at(node)]) {
      continue;
    }
    if (node != start && network_.is_rank(node)) {
      costs_(rank, network_.rank_of_node[at(node)]) = cost;
      continue;
    }
    for (const int arc : leaving_[at(node)]) {
      const int next = network_.arcs[at(arc)].to;
      const std::pair<double, int> through{cost + prices[at(arc)], hops + 1};
      if (through < best[at(next)]) {
        best[at(next)] = through;
        entered_by[at(next)] = arc;
        open.emplace(through.first, through.second, next);
      }
    }
  }
}

std::vector<int> Closure::searched_path(int from_rank, int to_rank) const {
  std::vector<int> out;
  const int start = network_.ranks[at(from_rank)];
  for (int node = network_.ranks[at(to_rank)]; node != start;) {
    out.push_back(last_arc_[at(from_rank)][at(node)]);
    node = network_.arcs[at(out.back())].from;
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<int> Closure::path(int from_rank, int to_rank) const {
  if (symmetry_ == nullptr) return searched_path(from_rank, to_rank);
  std::vector<int> out =
      searched_path(symmetry_->rank_class[at(from_rank)], back_[at(from_rank)][at(to_rank)]);
  for (int& arc : out) {
    arc = images_->image(symmetry_->images[at(renaming_[at(from_rank)])], arc);
  }
  return out;
}

}  // namespace ropewalk::plan
