#include "plan/peeling.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "core/index.h"
#include "plan/optimal.h"
#include "plan/simplex.h"

namespace ropewalk::plan {
namespace {

// A pivot of a programme takes the square of the links; some hundredths of a second of one core in
// all.
constexpr std::size_t kMostWork = 12'000'000;
constexpr std::size_t kTried = 16;  // of the heaviest trees of the last solution, at each step
// What a tree is worth more than others, so that it gets all it can. Less than what any exchange of
// trees loses in the rate, which is checked.
constexpr double kFavour = 1e-3;
constexpr double kClosed = 1e6;  // price of a link that is full

class Peeling {
 public:
  Peeling(const Network& network, Collective collective, int root, std::vector<TreePair> known)
      : network_(network),
        collective_(collective),
        root_(root),
        mirrored_(collective == Collective::kAllReduce && is_symmetric(network)) {
    for (const Arc& arc : network.arcs) {
      scale_ = std::max(scale_, static_cast<double>(arc.capacity));
    }
    // Capacities around 1 keep the arithmetic accurate.
    for (const Arc& arc : network.arcs) left_.push_back(static_cast<double>(arc.capacity) / scale_);
    for (TreePair& tree : known) add(std::move(tree));
  }

  std::vector<TreePair> run(int most) {
    Packing packing = best(std::nullopt);
    const double all = packing.rate;
    double rest = all;
    std::vector<std::size_t> chosen;
    while (rest > 1e-7 * all && static_cast<int>(chosen.size()) < most) {
      if (work_ > kMostWork) return {};
      std::optional<std::pair<std::size_t, Packing>> heaviest;
      for (const std::size_t tree : heaviest_of(packing)) {
        Packing favouring = best(tree);
        if (favouring.rate < rest * (1 - 1e-7)) continue;
        if (!heaviest.has_value() ||
            favouring.weights[tree] > heaviest->second.weights[heaviest->first] * (1 + 1e-7)) {
          heaviest.emplace(tree, std::move(favouring));
        }
      }
      if (!heaviest.has_value()) break;
      const auto& [tree, favouring] = *heaviest;
      const double weight = favouring.weights[tree];
      for (const auto& [arc, times] : uses_[tree]) {
        double& left = left_[at(arc)];
        left -= weight * times;
        if (left < 1e-7) left = 0;
      }
      rest -= weight;
      if (std::ranges::find(chosen, tree) == chosen.end()) chosen.push_back(tree);
      packing = std::move(heaviest->second);
      packing.weights[heaviest->first] = 0;
    }
    std::vector<TreePair> out;
    for (const std::size_t tree : chosen) out.push_back(trees_[tree]);
    return out;
  }

 private:
  struct Packing {
    double rate = 0;
    std::vector<double> weights;  // of trees_
  };

  void add(TreePair tree) {
    uses_.push_back(arc_uses(tree));
    trees_.push_back(std::move(tree));
  }

  [[nodiscard]] bool is_open(std::size_t tree) const {
    return std::ranges::all_of(uses_[tree],
                               [&](const auto& use) { return left_[at(use.first)] > 0; });
  }

  [[nodiscard]] std::vector<std::size_t> heaviest_of(const Packing& packing) const {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < packing.weights.size(); ++i) {
      if (packing.weights[i] > 1e-7 && is_open(i)) order.push_back(i);
    }
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
      return packing.weights[a] > packing.weights[b];
    });
    order.resize(std::min(order.size(), kTried));
    return order;
  }

  /// The best packing of what is left of the links, with as much as possible of one tree.
  Packing best(std::optional<std::size_t> favoured) {
    std::vector<std::size_t> tree_of_column;
    const auto column_of = [&](std::size_t tree) {
      Column column{{}, tree == favoured ? 1 + kFavour : 1.0};
      for (const auto& [arc, times] : uses_[tree]) column.entries.emplace_back(arc, times);
      tree_of_column.push_back(tree);
      return column;
    };
    const LinearSolution solution =
        maximise(left_, [&](const std::vector<double>& prices) -> std::optional<Column> {
          work_ += prices.size() * prices.size();
          if (work_ > kMostWork) return std::nullopt;
          std::optional<std::size_t> cheapest;
          double most = 1e-9;
          for (std::size_t tree = 0; tree < trees_.size(); ++tree) {
            double gain = tree == favoured ? 1 + kFavour : 1.0;
            for (const auto& [arc, times] : uses_[tree]) gain -= prices[at(arc)] * times;
            if (gain > most && is_open(tree)) {
              most = gain;
              cheapest = tree;
            }
          }
          if (cheapest.has_value()) return column_of(*cheapest);
          auto [tree, cost] = found(prices);
          if (1 - cost <= 1e-9) return std::nullopt;
          add(std::move(tree));
          return column_of(trees_.size() - 1);
        });
    Packing packing;
    packing.weights.assign(trees_.size(), 0.0);
    for (std::size_t i = 0; i < solution.amounts.size(); ++i) {
      packing.weights[tree_of_column[i]] += solution.amounts[i];
      packing.rate += solution.amounts[i];
    }
    return packing;
  }

  [[nodiscard]] std::pair<TreePair, double> found(std::vector<double> prices) const {
    for (std::size_t arc = 0; arc < prices.size(); ++arc) {
      if (left_[arc] <= 0) prices[arc] = kClosed;
    }
    const TreeFinder finder(network_, prices);
    if (collective_ == Collective::kBroadcast) return finder.out_tree(root_);
    if (mirrored_) return finder.mirrored();
    std::pair<TreePair, double> best = finder.pair(0);
    for (int rank = 1; rank < network_.num_ranks(); ++rank) {
      if (auto other = finder.pair(rank); other.second < best.second) best = std::move(other);
    }
    return best;
  }

  const Network& network_;
  Collective collective_;
  int root_;
  bool mirrored_;
  double scale_ = 0;
  std::size_t work_ = 0;
  std::vector<double> left_;  // of each arc's capacity, over scale_
  std::vector<TreePair> trees_;
  std::vector<std::vector<std::pair<int, int>>> uses_;  // of trees_
};

}  // namespace

FewTrees peeled_trees(const Network& network, Collective collective, int root,
                      std::vector<TreePair> known, int most) {
  FewTrees out;
  std::vector<TreePair> trees = Peeling(network, collective, root, std::move(known)).run(most);
  if (trees.empty()) return out;
  const std::vector<Fraction> weights = exact_weights(network, trees, best_weights(network, trees));
  for (std::size_t i = 0; i < trees.size(); ++i) {
    if (weights[i] <= Fraction(0)) continue;
    out.rate += weights[i];
    out.weights.push_back(weights[i]);
    out.trees.push_back(std::move(trees[i]));
  }
  return out;
}

}  // namespace ropewalk::plan
