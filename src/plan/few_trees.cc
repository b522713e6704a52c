#include "plan/few_trees.h"

#include <algorithm>
#include <cmath>

#include "core/index.h"
#include "plan/optimal.h"

namespace ropewalk::plan {

namespace {

constexpr int kQuickRepairs = 4;
constexpr int kRepairs = 12;  // times that every tree is routed again; gains end well before

/// Trees of weight 1 and what they put on arcs.
class Routing {
 public:
  Routing(const Network& network, Collective collective, int root)
      : network_(network),
        collective_(collective),
        root_(root),
        mirrored_(collective == Collective::kAllReduce && is_symmetric(network)),
        load_(network.arcs.size(), 0.0) {}

  /// Routes a tree by prices that are steep in the load of arcs.
  TreePair route(double steepness) const { return route(steepness, root_); }

  TreePair route(double steepness, int root) const {
    const double worst = std::max(largest(), 1e-12);
    std::vector<double> prices;
    for (std::size_t i = 0; i < network_.arcs.size(); ++i) {
      const auto capacity = static_cast<double>(network_.arcs[i].capacity);
      prices.push_back(std::exp(steepness * (load_[i] + 1) / capacity / worst_unit(worst)) /
                       capacity);
    }
    const double least = *std::min_element(prices.begin(), prices.end());
    for (double& price : prices) {
      price /= least;
    }
    const TreeFinder finder(network_, prices);
    if (collective_ == Collective::kBroadcast) {
      return finder.out_tree(root).first;
    }
    if (mirrored_) {
      return finder.mirrored().first;
    }
    std::pair<TreePair, double> best = finder.pair(0);
    for (int rank = 1; rank < network_.num_ranks(); ++rank) {
      std::pair<TreePair, double> other = finder.pair(rank);
      if (other.second < best.second) {
        best = std::move(other);
      }
    }
    return best.first;
  }

  void add(const TreePair& tree, double weight) {
    for (const auto& [arc, times] : arc_uses(tree)) {
      load_[at(arc)] += weight * times;
    }
  }

  /// The largest load relative to capacity.
  [[nodiscard]] double largest() const {
    double out = 0;
    for (std::size_t i = 0; i < load_.size(); ++i) {
      out = std::max(out, load_[i] / static_cast<double>(network_.arcs[i].capacity));
    }
    return out;
  }

 private:
  /// Loads are measured against the worst one, so that steepness means the same at any scale.
  double worst_unit(double worst) const {
    double least_unit = 1e300;
    for (const Arc& arc : network_.arcs) {
      least_unit = std::min(least_unit, 1.0 / static_cast<double>(arc.capacity));
    }
    return std::max(worst, least_unit);
  }

  const Network& network_;
  Collective collective_;
  int root_;
  bool mirrored_;
  std::vector<double> load_;
};

double rate_of(const Network& network, const std::vector<TreePair>& trees,
               std::vector<double>& weights) {
  weights = best_weights(network, trees);
  double sum = 0;
  for (const double weight : weights) {
    sum += weight;
  }
  return sum;
}

}  // namespace

FewTrees few_trees(const Network& network, Collective collective, int root, int count,
                   bool thorough) {
  std::vector<TreePair> best;
  std::vector<double> best_weights_found;
  double best_rate = -1;
  const std::vector<double> steps = thorough ? std::vector{2.0, 5.0, 12.0} : std::vector{5.0};
  const int repairs = thorough ? kRepairs : kQuickRepairs;
  for (const double steepness : steps) {
    Routing routing(network, collective, root);
    std::vector<TreePair> trees;
    for (int i = 0; i < count; ++i) {
      trees.push_back(routing.route(steepness));
      routing.add(trees.back(), 1);
    }
    for (int repair = 0; repair < repairs; ++repair) {
      bool changed = false;
      for (TreePair& tree : trees) {
        routing.add(tree, -1);
        TreePair other = routing.route(steepness * (1 + repair));
        changed = changed || other.out != tree.out || other.in != tree.in;
        tree = std::move(other);
        routing.add(tree, 1);
      }
      std::vector<double> weights;
      const double rate = rate_of(network, trees, weights);
      if (rate > best_rate * (1 + 1e-9)) {
        best_rate = rate;
        best = trees;
        best_weights_found = weights;
      }
      if (!changed) {
        break;
      }
    }
  }
  FewTrees out;
  const std::vector<Fraction> exact = exact_weights(network, best, best_weights_found);
  for (std::size_t i = 0; i < best.size(); ++i) {
    if (exact[i] > Fraction(0)) {
      out.trees.push_back(std::move(best[i]));
      out.weights.push_back(exact[i]);
      out.rate += exact[i];
    }
  }
  return out;
}

FewTrees few_trees_of_all(const Network& network, int per_root) {
  std::vector<TreePair> best;
  double least = 1e300;
  for (const double steepness : {3.0, 10.0}) {
    Routing routing(network, Collective::kBroadcast, 0);
    std::vector<TreePair> trees;
    for (int i = 0; i < per_root; ++i) {
      for (int root = 0; root < network.num_ranks(); ++root) {
        trees.push_back(routing.route(steepness, root));
        routing.add(trees.back(), 1);
      }
    }
    for (int repair = 0; repair < kRepairs; ++repair) {
      if (routing.largest() < least * (1 - 1e-9)) {
        least = routing.largest();
        best = trees;
      }
      bool changed = false;
      for (TreePair& tree : trees) {
        routing.add(tree, -1);
        TreePair other = routing.route(steepness * (1 + repair), tree.root);
        changed = changed || other.out != tree.out;
        tree = std::move(other);
        routing.add(tree, 1);
      }
      if (!changed) {
        break;
      }
    }
  }
  std::vector<Fraction> load(network.arcs.size(), 0);
  for (const TreePair& tree : best) {
    for (const auto& [arc, times] : arc_uses(tree)) load[at(arc)] += Fraction(times);
  }
  Fraction worst = 0;
  for (std::size_t i = 0; i < load.size(); ++i) {
    worst = std::max(worst, load[i] / Fraction(network.arcs[i].capacity));
  }
  FewTrees out;
  out.weights.assign(best.size(), Fraction(1) / worst);
  out.rate = Fraction(static_cast<Fraction::Integer>(best.size())) / worst;
  out.trees = std::move(best);
  return out;
}

}  // namespace ropewalk::plan
