// Plans with random trees, for tests.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "core/types.h"
#include "plan/plan.h"

namespace ropewalk::schedule::testing {

inline constexpr Collective kPlanned[] = {Collective::kBroadcast, Collective::kReduce,
                                          Collective::kAllGather, Collective::kReduceScatter,
                                          Collective::kAllReduce};

/// Plans with random trees over ranks that all have a link of their own to each other: link
/// source * ranks + destination.
class RandomPlans {
 public:
  explicit RandomPlans(unsigned seed) : random_(seed) {}

  plan::Plan make(Collective collective, int ranks, int trees_per_root, bool all_roots,
                  bool same_path_back) {
    plan::Plan plan;
    plan.collective = collective;
    plan.algorithm = "random";
    plan.gpus.resize(static_cast<std::size_t>(ranks));
    plan.root = has_root(collective) ? below(ranks) : 0;
    for (int root = 0; root < ranks; ++root) {
      if (!all_roots && root != plan.root) continue;
      plan::Fraction left = 6;
      for (int i = 0; i < trees_per_root; ++i) {
        const plan::Fraction weight =
            i + 1 == trees_per_root ? left : left * plan::Fraction(1 + below(3), 7);
        left -= weight;
        plan.trees.push_back(tree(collective, ranks, root, weight, same_path_back));
        plan.algbw += weight;
      }
    }
    return plan;
  }

 private:
  int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }

  plan::TreeEdge edge(int source, int destination, int ranks) {
    return {source, destination, {source * ranks + destination}};
  }

  /// (parent, child), parents first.
  std::vector<std::pair<int, int>> random_tree(int ranks, int root) {
    std::vector<int> order(static_cast<std::size_t>(ranks));
    std::iota(order.begin(), order.end(), 0);
    std::swap(order[0], order[static_cast<std::size_t>(root)]);
    std::shuffle(order.begin() + 1, order.end(), random_);
    std::vector<std::pair<int, int>> edges;
    for (int i = 1; i < ranks; ++i) {
      edges.emplace_back(order[static_cast<std::size_t>(std::max(i - 1 - below(3), 0))],
                         order[static_cast<std::size_t>(i)]);
    }
    return edges;
  }

  plan::Tree tree(Collective collective, int ranks, int root, const plan::Fraction& weight,
                  bool same_path_back) {
    plan::Tree made;
    made.root = root;
    made.weight = weight;
    const auto down = random_tree(ranks, root);
    const auto up = same_path_back ? down : random_tree(ranks, root);
    if (reduces(collective)) {
      for (auto at = up.rbegin(); at != up.rend(); ++at) {
        made.reduce.push_back(edge(at->second, at->first, ranks));
      }
    }
    if (collective != Collective::kReduce && collective != Collective::kReduceScatter) {
      for (const auto& [parent, child] : down) {
        made.broadcast.push_back(edge(parent, child, ranks));
      }
    }
    return made;
  }

  std::mt19937 random_;
};

template <typename Body>
void for_every_plan(Body&& body) {
  RandomPlans plans(7);
  for (const Collective collective : kPlanned) {
    for (int ranks = 2; ranks <= 9; ++ranks) {
      for (int trees = 1; trees <= 3; ++trees) {
        for (const bool same_path_back : {true, false}) {
          for (const bool all_roots : {true, false}) {
            // What must have all roots, and what must not.
            if (has_root(collective) ? all_roots
                                     : !all_roots && collective != Collective::kAllReduce) {
              continue;
            }
            body(plans.make(collective, ranks, trees, all_roots, same_path_back));
          }
        }
      }
    }
  }
}

}  // namespace ropewalk::schedule::testing
