#include "schedule/from_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "schedule/check.h"
#include "schedule/testing/random_plans.h"
#include "schedule/testing/reference_run.h"
#include "schedule/text.h"

namespace ropewalk::schedule {
namespace {

using plan::Fraction;
using testing::for_every_plan;
using testing::RandomPlans;

using plan::Fraction;

/// What the plan puts on each link when the whole message has that many elements.
std::vector<double> planned_elements(const plan::Plan& plan, double elements) {
  const auto n = static_cast<std::size_t>(plan.num_ranks());
  std::vector<double> loads(n * n, 0);
  for (const plan::Tree& tree : plan.trees) {
    for (const auto* edges : {&tree.reduce, &tree.broadcast}) {
      for (const plan::TreeEdge& edge : *edges) {
        loads[static_cast<std::size_t>(edge.links.front())] +=
            elements * (tree.weight / plan.algbw).to_double();
      }
    }
  }
  return loads;
}

TEST(FromPlan, IsAcceptedAndComputesItsCollective) {
  std::uint64_t seed = 1;
  int made = 0;
  for_every_plan([&](const plan::Plan& plan) {
    const PlannedSchedule planned = from_plan(plan);
    const Schedule& schedule = planned.schedule;
    SCOPED_TRACE(std::string(name(plan.collective)) + " " + std::to_string(plan.num_ranks()));
    const CheckReport report = check(schedule, 2);
    ASSERT_TRUE(report.accepted) << report.defects.front() << "\n" << print(schedule);
    EXPECT_TRUE(report.in_place);
    EXPECT_EQ(parse(print(schedule)), schedule);
    EXPECT_EQ(schedule.algorithm, "plan-random");
    const auto pieces = static_cast<std::size_t>(schedule.parts * schedule.num_channels());
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, pieces + 3, std::size_t{97}}) {
      testing::RunOptions options;
      options.count = count;
      options.seed = ++seed;
      options.chunk = 1 + seed % 5;
      const auto wrong = testing::ReferenceRun(schedule, options).wrong();
      EXPECT_FALSE(wrong.has_value()) << *wrong;
    }
    ++made;
  });
  EXPECT_GT(made, 200);
}

// Other operations than all-reduce are unchanged.
TEST(FromPlan, LaggingSchedulesHaveAChannelPerTreeAndAStepPerDirection) {
  for_every_plan([&](const plan::Plan& plan) {
    const Schedule schedule = from_plan(plan, Pipelining::kByLags).schedule;
    if (plan.collective != Collective::kAllReduce) {
      EXPECT_EQ(schedule, from_plan(plan).schedule);
      return;
    }
    EXPECT_EQ(schedule.parts, 1);
    ASSERT_EQ(schedule.num_channels(), static_cast<int>(plan.trees.size()));
    const CheckReport report = check(schedule, 2);
    ASSERT_TRUE(report.accepted) << report.defects.front() << "\n" << print(schedule);
    EXPECT_TRUE(report.in_place);
    for (std::size_t channel = 0; channel < plan.trees.size(); ++channel) {
      for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
        const bool is_root = static_cast<int>(rank) == plan.trees[channel].root;
        EXPECT_EQ(schedule.programs[rank][channel].size(), is_root ? 1U : 2U);
      }
    }
  });
}

TEST(FromPlan, PutsThePlannedBytesOnEveryLink) {
  for_every_plan([&](const plan::Plan& plan) {
    for (const Pipelining pipelining : {Pipelining::kByParts, Pipelining::kByLags}) {
      const PlannedSchedule planned = from_plan(plan, pipelining);
      const auto n = static_cast<std::size_t>(plan.num_ranks());
      // The message is the larger buffer: the ranks' counts together, where each has its own.
      const bool per_rank = plan.collective == Collective::kAllGather ||
                            plan.collective == Collective::kReduceScatter;
      const std::size_t count = 1'000'000;
      const double message = static_cast<double>(count) * (per_rank ? static_cast<double>(n) : 1);
      const auto planned_loads = planned_elements(plan, message);
      const auto counted = bytes_on_links(planned, count, 4, 1, n * n);
      // Each channel's and part's boundaries round to whole elements.
      const double slack = 4.0 * (planned.schedule.num_channels() + 2) * planned.schedule.parts *
                           (per_rank ? static_cast<double>(n) : 1);
      for (std::size_t link = 0; link < n * n; ++link) {
        EXPECT_NEAR(counted[link], 4 * planned_loads[link], 4 * slack);
      }
    }
  });
}

TEST(FromPlan, SharesPiecesAmongRootsThatChangeTreesTogether) {
  RandomPlans plans(3);
  plan::Plan plan = plans.make(Collective::kAllGather, 4, 2, true, true);
  const Fraction weights[] = {4, 2};
  for (std::size_t i = 0; i < plan.trees.size(); ++i) plan.trees[i].weight = weights[i % 2];
  EXPECT_EQ(from_plan(plan).schedule.weight, (std::vector<int>{2, 1}));
  std::swap(plan.trees[0].weight, plan.trees[1].weight);  // the order of a root's trees is free
  EXPECT_EQ(from_plan(plan).schedule.weight, (std::vector<int>{2, 1}));
  plan.trees[0].weight = 3;
  plan.trees[1].weight = 3;  // one rank changes halfway
  EXPECT_EQ(from_plan(plan).schedule.weight, (std::vector<int>{3, 1, 2}));
}

TEST(FromPlan, KeepsWeightsThatHaveNoCommonWholeNumbers) {
  RandomPlans plans(5);
  plan::Plan plan = plans.make(Collective::kBroadcast, 3, 3, false, true);
  plan.trees[0].weight = Fraction(1, 999'983);
  plan.trees[1].weight = Fraction(1, 999'979);
  plan.trees[2].weight = Fraction(1, 3);
  const Schedule schedule = from_plan(plan).schedule;
  ASSERT_EQ(schedule.num_channels(), 3);
  EXPECT_EQ(schedule.weight[2], 1'000'000);
  EXPECT_EQ(schedule.weight[0], 3);
  EXPECT_TRUE(check(schedule).accepted);
}

std::string message_of(const plan::Plan& plan) {
  try {
    from_plan(plan);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(FromPlan, RefusesPlansWithoutTrees) {
  RandomPlans plans(9);
  const plan::Plan good = plans.make(Collective::kAllGather, 4, 1, true, true);
  const auto spoilt = [&](auto&& spoil) {
    plan::Plan bad = good;
    spoil(bad);
    return message_of(bad);
  };
  const auto says = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  says(spoilt([](plan::Plan& p) { p.trees.clear(); }), "no trees");
  says(spoilt([](plan::Plan& p) { p.gpus.resize(1); }), "fewer than two");
  says(spoilt([](plan::Plan& p) { p.collective = Collective::kAllToAll; }), "no such collective");
  says(spoilt([](plan::Plan& p) { p.trees[1].weight = 0; }), "not positive");
  says(spoilt([](plan::Plan& p) { p.trees[1].weight = 1; }), "of the same weight");
  says(spoilt([](plan::Plan& p) { p.trees[1].broadcast.pop_back(); }), "does not reach rank");
  says(spoilt([](plan::Plan& p) { p.trees[1].broadcast[0].destination = 9; }), "is in no tree");
  says(spoilt([](plan::Plan& p) { p.trees[1].broadcast[0].destination = 1; }), "is in no tree");
  says(spoilt([](plan::Plan& p) { p.trees[1].root = -1; }), "root -1");
  says(spoilt([](plan::Plan& p) { p.collective = Collective::kReduceScatter; }), "directions");
  says(spoilt([](plan::Plan& p) { p.collective = Collective::kBroadcast; }), "of root 1, not 0");
  // A circle beside the tree: every rank has a parent, yet the root does not reach all.
  says(spoilt([](plan::Plan& p) {
         p.trees[0].broadcast = {{0, 1, {}}, {2, 3, {}}, {3, 2, {}}};
       }),
       "does not reach rank 2");
}

}  // namespace
}  // namespace ropewalk::schedule
