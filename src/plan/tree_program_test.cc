// The parts of the linear programme, against enumeration and known optima.
#include "plan/tree_program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/index.h"
#include "plan/arborescence.h"
#include "plan/packed.h"
#include "plan/symmetry.h"
#include "topology/replicate.h"
#include "topology/testing/recorded.h"

namespace ropewalk::plan {
namespace {

class Dice {
 public:
  int operator()(int sides) {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<int>((state_ >> 33U) % static_cast<std::uint64_t>(sides));
  }

 private:
  std::uint64_t state_ = 7;
};

/// The cheapest choice that gives every rank but 0 a parent, without cycles.
double cheapest_by_enumeration(const CostMatrix& costs) {
  const int ranks = costs.ranks();
  int all = 1;
  for (int i = 1; i < ranks; ++i) all *= ranks;
  double best = CostMatrix::kUnreachable;
  for (int code = 0; code < all; ++code) {
    std::vector<int> parent(at(ranks), -1);
    int left = code;
    for (int rank = 1; rank < ranks; ++rank) {
      parent[at(rank)] = left % ranks;
      left /= ranks;
    }
    bool tree = true;
    for (int rank = 1; rank < ranks && tree; ++rank) {
      int node = rank;
      for (int step = 0; step < ranks && node != 0; ++step) node = parent[at(node)];
      tree = node == 0;
    }
    if (tree) best = std::min(best, cost_of(costs, parent));
  }
  return best;
}

TEST(Arborescence, IsTheCheapestOfAll) {
  Dice dice;
  for (int round = 0; round < 400; ++round) {
    const int ranks = 2 + dice(4);
    CostMatrix costs(ranks);
    for (int a = 0; a < ranks; ++a) {
      for (int b = 0; b < ranks; ++b) {
        // From 0 there is always a path.
        if (a != b && (a == 0 || dice(4) > 0)) costs(a, b) = dice(9);
      }
    }
    EXPECT_EQ(cost_of(costs, cheapest_out_tree(costs, 0)), cheapest_by_enumeration(costs));
  }
}

TEST(SimplestNear, FindsTheFractionThatWasRounded) {
  EXPECT_EQ(simplest_near(1200.0 / 7, 1e-8), Fraction(1200, 7));
  EXPECT_EQ(simplest_near(0.125, 1e-8), Fraction(1, 8));
  EXPECT_EQ(simplest_near(45, 1e-8), Fraction(45));
}

TEST(PackByWeights, ComesNearTheBoundAsItsStepShrinks) {
  // Reference: packings of the DGX-1V's NVLinks from GPU 0, bound 6 lanes of 25 GB/s.
  const topology::Topology machine = topology::testing::machine("dgx1v");
  const Network network = make_network(machine, {"nvlink", {}});
  for (const auto& [step, least] : {std::pair{0.2, 0.97}, std::pair{0.1, 0.99}}) {
    const FractionalPacking packing = pack_by_weights(network, Collective::kBroadcast, 0, step);
    double rate = 0;
    for (const double weight : packing.weights) rate += weight;
    rate *= network.unit.to_double();
    EXPECT_LE(rate, 150 * (1 + 1e-9));
    EXPECT_GE(rate, 150 * least);
  }
}

TEST(Symmetry, FindsThatHostsAndGpusAreAlike) {
  const topology::Topology cluster =
      topology::replicate(topology::testing::machine("dgx-h100"), 3, topology::Fabric::kOne);
  const Symmetry found = find_symmetry(cluster, make_network(cluster, {}));
  EXPECT_EQ(found.images.size(), 24U);
  EXPECT_EQ(std::count(found.rank_class.begin(), found.rank_class.end(), 0), 24);
}

TEST(Symmetry, ClaimsNothingThatIsNot) {
  // One link of the second host is slower: neither hosts nor GPUs are equivalent.
  topology::Description changed =
      topology::replicate(topology::testing::machine("dgx-h100"), 2, topology::Fabric::kOne)
          .description();
  for (topology::Link& link : changed.links) {
    if (changed.nodes[link.source].id == "h1.gpu3" && link.type == topology::LinkType::kNvlink) {
      link.capacity = 400;
    }
  }
  const topology::Topology machine(changed);
  const Network network = make_network(machine, {});
  const Symmetry found = find_symmetry(machine, network);
  const ArcImages arcs(network);
  for (const std::vector<int>& image : found.images) {
    for (std::size_t arc = 0; arc < network.arcs.size(); ++arc) {
      const int to = arcs.image(image, static_cast<int>(arc));
      ASSERT_GE(to, 0);
      EXPECT_EQ(network.arcs[at(to)].capacity, network.arcs[arc].capacity);
    }
  }
  EXPECT_LT(found.images.size(), 16U);
}

}  // namespace
}  // namespace ropewalk::plan
