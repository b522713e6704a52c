// Few trees at the best rate.
#include "plan/peeling.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/index.h"
#include "plan/bounds.h"
#include "plan/packed.h"
#include "topology/testing/recorded.h"

namespace ropewalk::plan {
namespace {

void expect_within_links(const Network& network, const FewTrees& found) {
  std::vector<Fraction> load(network.arcs.size(), 0);
  Fraction sum = 0;
  for (std::size_t i = 0; i < found.trees.size(); ++i) {
    sum += found.weights[i];
    for (const auto& [arc, times] : arc_uses(found.trees[i])) {
      load[at(arc)] += found.weights[i] * Fraction(times);
    }
  }
  EXPECT_EQ(sum, found.rate);
  for (std::size_t arc = 0; arc < load.size(); ++arc) {
    EXPECT_LE(load[arc], Fraction(network.arcs[arc].capacity));
  }
}

TEST(PeeledTrees, ReachTheBestRateWithoutTreesToBeginWith) {
  for (const char* name : {"dgx1p", "dgx1v"}) {
    const topology::Topology machine = topology::testing::machine(name);
    const Network network = make_network(machine, {"nvlink", {}});
    const Fraction best = solve_tree_program(network, Collective::kAllReduce, 0).bound;
    const FewTrees found = peeled_trees(network, Collective::kAllReduce, 0, {}, 64);
    EXPECT_EQ(found.rate, best) << name;
    EXPECT_LE(found.trees.size(), 12U) << name;
    expect_within_links(network, found);
    const FewTrees sent = peeled_trees(network, Collective::kBroadcast, 3, {}, 64);
    EXPECT_EQ(sent.rate, broadcast_bound(network, 3).rate) << name;
    expect_within_links(network, sent);
    for (const TreePair& tree : sent.trees) EXPECT_EQ(tree.root, 3);
  }
}

// The heaviest come first: half of the trees carry more than half of the rate.
TEST(PeeledTrees, OfALimitedNumberAreTheHeaviest) {
  const topology::Topology machine = topology::testing::machine("dgx1v");
  const Network network = make_network(machine, {"nvlink", {}});
  const FewTrees all = peeled_trees(network, Collective::kAllReduce, 0, {}, 64);
  const int half = static_cast<int>(all.trees.size()) / 2;
  const FewTrees some = peeled_trees(network, Collective::kAllReduce, 0, {}, half);
  EXPECT_LE(some.trees.size(), at(half));
  EXPECT_GT(some.rate.to_double(), 0.6 * all.rate.to_double());
  EXPECT_LT(some.rate, all.rate);
  expect_within_links(network, some);
}

TEST(PeeledTrees, AreNoneWhereTheSearchWouldTakeLong) {
  const topology::Topology machine = topology::testing::machine("dgx2-detailed");
  const Network network = make_network(machine, {"nvlink", {}});
  EXPECT_TRUE(peeled_trees(network, Collective::kAllReduce, 0, {}, 64).trees.empty());
}

}  // namespace
}  // namespace ropewalk::plan
