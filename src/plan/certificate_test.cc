// The checker must find every kind of lie.
#include "plan/certificate.h"

#include <gtest/gtest.h>

#include <functional>

#include "plan/planner.h"
#include "topology/testing/recorded.h"

namespace ropewalk::plan {
namespace {

const topology::Topology& machine() {
  static const topology::Topology dgx = topology::testing::machine("dgx1v");
  return dgx;
}

Plan good(Collective collective) {
  Request request;
  request.collective = collective;
  request.algorithm = "optimal";
  request.selection.plane = "nvlink";
  return make_plan(machine(), request);
}

void expect_defect(Collective collective, const std::function<void(Plan&)>& spoil) {
  Plan plan = good(collective);
  ASSERT_TRUE(check(machine(), plan).optimal);
  spoil(plan);
  const Certificate found = check(machine(), plan);
  EXPECT_FALSE(found.optimal);
  EXPECT_FALSE(found.defects.empty());
}

TEST(Certificate, FindsATreeThatMissesARank) {
  expect_defect(Collective::kBroadcast, [](Plan& plan) { plan.trees[0].broadcast.pop_back(); });
}

TEST(Certificate, FindsACycle) {
  expect_defect(Collective::kAllGather,
                [](Plan& plan) { plan.trees[0].broadcast[1] = plan.trees[0].broadcast[0]; });
}

TEST(Certificate, FindsAPathThatDoesNotJoin) {
  expect_defect(Collective::kReduce,
                [](Plan& plan) { plan.trees[0].reduce[0].links = plan.trees[0].reduce[1].links; });
}

TEST(Certificate, FindsALinkOfAnotherPlane) {
  expect_defect(Collective::kBroadcast, [](Plan& plan) { plan.plane = "pcie"; });
}

TEST(Certificate, FindsTooMuchLoad) {
  expect_defect(Collective::kBroadcast, [](Plan& plan) {
    plan.trees[0].weight *= Fraction(1000001, 1000000);
    plan.algbw = 0;
    for (const Tree& tree : plan.trees) plan.algbw += tree.weight;
  });
}

TEST(Certificate, FindsWeightsThatDoNotAddUp) {
  expect_defect(Collective::kReduceScatter, [](Plan& plan) { plan.algbw += Fraction(1, 1000000); });
}

TEST(Certificate, FindsRootsOfUnequalWeight) {
  expect_defect(Collective::kAllGather, [](Plan& plan) {
    plan.algbw -= plan.trees[0].weight / 2;
    plan.trees[0].weight /= 2;
  });
}

TEST(Certificate, FindsACutThatDoesNotPart) {
  expect_defect(Collective::kBroadcast, [](Plan& plan) { plan.bound.why.links.pop_back(); });
  expect_defect(Collective::kAllGather, [](Plan& plan) { plan.bound.why.links.clear(); });
}

// What another rank sends on (or gathers) bounds no broadcast (or reduce), however right the cut
// is.
TEST(Certificate, FindsACutThatLacksTheRoot) {
  for (const Collective collective : {Collective::kBroadcast, Collective::kReduce}) {
    Plan plan = good(collective);
    const auto node = static_cast<std::size_t>(plan.gpus[1]);
    ASSERT_NE(plan.root, 1);
    Bottleneck& why = plan.bound.why;
    ASSERT_TRUE(why.prices.empty());
    why.inside_nodes = {plan.gpus[1]};
    why.links.clear();
    Fraction capacity = 0;
    const auto& all = collective == Collective::kBroadcast ? machine().links_from(node)
                                                           : machine().links_to(node);
    for (const topology::LinkIndex link : all) {
      if (machine().link(link).type != topology::LinkType::kNvlink) continue;
      why.links.push_back(static_cast<int>(link));
      capacity += Fraction::from_decimal(machine().link(link).capacity, 6);
    }
    // It parts the ranks, and allows the very rate that the plan has.
    ASSERT_EQ(capacity, plan.bound.algbw);
    const Certificate found = check(machine(), plan);
    EXPECT_FALSE(found.bound_holds);
    EXPECT_FALSE(found.optimal);
    ASSERT_FALSE(found.defects.empty());
    EXPECT_EQ(found.defects[0], "the cut does not hold the root");
  }
}

TEST(Certificate, FindsABoundThatIsTooLow) {
  expect_defect(Collective::kBroadcast, [](Plan& plan) {
    plan.trees.pop_back();
    plan.algbw = 0;
    for (const Tree& tree : plan.trees) plan.algbw += tree.weight;
    plan.bound.algbw = plan.algbw;
  });
}

TEST(Certificate, FindsPricesThatProveLess) {
  expect_defect(Collective::kAllReduce, [](Plan& plan) { plan.bound.why.prices[0] *= 1.5; });
  expect_defect(Collective::kAllReduce, [](Plan& plan) { plan.bound.why.prices[0] = -1; });
}

}  // namespace
}  // namespace ropewalk::plan
