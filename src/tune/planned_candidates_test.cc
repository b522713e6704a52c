// Which plans are candidates, and that their hops are those that a driver takes.
#include "tune/planned_candidates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "plan/planner.h"
#include "schedule/from_plan.h"
#include "topology/testing/recorded.h"

namespace ropewalk::tune {
namespace {

using topology::LinkType;

topology::Topology machine(const std::string& name) {
  return planned_machine(topology::testing::machine(name));
}

std::vector<std::string> names(const PlannedCandidates& candidates) {
  std::vector<std::string> out;
  for (const auto& each : candidates.schedules) out.push_back(each->algorithm);
  return out;
}

// The types of the links that a channel's messages take.
std::set<LinkType> types(const topology::Topology& on, const RoutedSchedule& candidate,
                         int channel) {
  const schedule::Schedule& schedule = candidate.checked->schedule();
  std::set<LinkType> out;
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    for (const schedule::Step& step :
         schedule.programs[static_cast<std::size_t>(rank)][static_cast<std::size_t>(channel)]) {
      for (const int peer : step.send) {
        const auto* route = candidate.routes.find(channel, step.block, rank, peer);
        EXPECT_NE(route, nullptr);
        if (route == nullptr) continue;
        for (const int link : *route) out.insert(on.link(static_cast<std::size_t>(link)).type);
      }
    }
  }
  return out;
}

// Both classes of links are then cut identically, also if one plan has one root and the other has
// all.
TEST(PlannedCandidates, WhereStepsLagAnAllReduceHasAChannelForEachTree) {
  const topology::Topology part =
      planned_machine(topology::testing::machine("dgx1v").with_gpus({0, 1, 2, 4, 7}));
  const PlansRequest lagging{Collective::kAllReduce, 0, 16, true};
  const PlannedCandidates found = compile_plans(make_plans(part, lagging), lagging);
  EXPECT_THAT(names(found), ::testing::IsSupersetOf({"plan-packed", "plan-optimal-hybrid"}));
  EXPECT_FALSE(found.refused.contains("plan-optimal-hybrid"));
  for (const auto& candidate : found.schedules) {
    const bool fits = candidate->algorithm != "plan-optimal-pcie";  // which has more than 16 trees
    EXPECT_EQ(candidate->checked->schedule().parts, fits ? 1 : 5) << candidate->algorithm;
    EXPECT_LE(candidate->checked->schedule().num_channels(), 16) << candidate->algorithm;
  }
  const PlansRequest plain{Collective::kAllReduce, 0, 16};
  for (const auto& candidate : compile_plans(make_plans(part, plain), plain).schedules) {
    EXPECT_GT(candidate->checked->schedule().parts, 1) << candidate->algorithm;
  }
}

// Trees at the bound are few enough that those of both classes of links have channels of their own.
TEST(PlannedCandidates, LargeAllocationsHaveAnAllReduceOverBothClassesOfLinks) {
  for (const std::vector<int>& gpus :
       {std::vector{0, 1, 2, 5, 6, 7}, std::vector{0, 2, 3, 4, 6, 7}, std::vector{0, 2, 3, 5, 6, 7},
        std::vector{0, 1, 2, 3, 4, 5, 6}, std::vector{0, 1, 2, 3, 4, 6, 7},
        std::vector{0, 1, 2, 3, 4, 5, 6, 7}}) {
    const topology::Topology part =
        planned_machine(topology::testing::machine("dgx1v").with_gpus(gpus));
    const PlansRequest lagging{Collective::kAllReduce, 0, 16, true};
    const PlansMade made = make_plans(part, lagging);
    const auto hybrid = std::ranges::find(made.algorithms, "plan-packed-hybrid",
                                          [](const auto& each) { return each.name; });
    ASSERT_NE(hybrid, made.algorithms.end()) << ::testing::PrintToString(gpus);
    for (const plan::Plan& plan : hybrid->plans) {
      EXPECT_GE(plan.algbw.to_double(), plan.bound.algbw.to_double() * 0.99)
          << ::testing::PrintToString(gpus) << " " << plan.plane;
    }
    for (const auto& candidate : compile_plans(made, lagging).schedules) {
      if (candidate->algorithm != "plan-packed-hybrid") continue;
      EXPECT_EQ(candidate->checked->schedule().parts, 1) << "a channel for each tree";
      EXPECT_LE(candidate->checked->schedule().num_channels(), 16);
    }
  }
}

TEST(PlannedCandidates, EachChannelKeepsToOneClassOfLinks) {
  const topology::Topology dgx1 = machine("dgx1v");
  for (const Collective collective : plan::planned_collectives()) {
    const PlansRequest request{collective, 0, 16};
    const PlannedCandidates found = compile_plans(make_plans(dgx1, request), request);
    EXPECT_THAT(names(found), ::testing::IsSupersetOf({"plan-optimal", "plan-packed", "plan-ring",
                                                       "plan-optimal-pcie", "plan-ring-hybrid"}));
    for (const auto& candidate : found.schedules) {
      const bool pcie = candidate->algorithm.ends_with("-pcie");
      const bool hybrid = candidate->algorithm.ends_with("-hybrid");
      int nvlink_channels = 0;
      const int channels = candidate->checked->schedule().num_channels();
      for (int channel = 0; channel < channels; ++channel) {
        const std::set<LinkType> used = types(dgx1, *candidate, channel);
        const bool on_nvlink = used == std::set{LinkType::kNvlink};
        nvlink_channels += on_nvlink ? 1 : 0;
        EXPECT_TRUE(on_nvlink || !used.contains(LinkType::kNvlink)) << candidate->algorithm;
      }
      EXPECT_EQ(nvlink_channels == 0, pcie) << candidate->algorithm;
      EXPECT_EQ(nvlink_channels == channels, !pcie && !hybrid) << candidate->algorithm;
    }
  }
}

TEST(PlannedCandidates, AHybridSharesTheDataByTheRatesOfItsClasses) {
  const topology::Topology h200 = machine("h200-2gpu");
  const PlansRequest request{Collective::kBroadcast, 0, 16};
  const PlannedCandidates found = compile_plans(make_plans(h200, request), request);
  const auto hybrid =
      std::find_if(found.schedules.begin(), found.schedules.end(),
                   [](const auto& each) { return each->algorithm == "plan-optimal-hybrid"; });
  ASSERT_NE(hybrid, found.schedules.end());
  const std::vector<int>& weight = (*hybrid)->checked->schedule().weight;
  ASSERT_EQ(weight.size(), 2U);
  EXPECT_NEAR(static_cast<double>(weight[0]) / weight[1], 450.0 / 48, 0.01);
}

TEST(PlannedCandidates, BetweenHostsThreePhasesAndChainsOverRails) {
  const topology::Topology pair = machine("rccl-4gpu-4nic-x2");
  const PlansRequest request{Collective::kAllReduce, 0, 16};
  const PlannedCandidates found = compile_plans(make_plans(pair, request), request);
  EXPECT_THAT(names(found), ::testing::IsSupersetOf({"plan-three-phase", "plan-rail-chain"}));
  // A driver does not take a path within a host that goes out to the network and back.
  EXPECT_EQ(found.refused.at("plan-optimal"), "it has hops that a driver would not take");
}

TEST(PlannedCandidates, SlowPlansAreLeftOutWithTheReason) {
  const topology::Topology pair = machine("dgx-h100-x2");
  const PlansMade made = make_plans(pair, {Collective::kAllReduce, 0, 16});
  EXPECT_THAT(made.refused.at("plan-packed"), ::testing::HasSubstr("take too long"));
  EXPECT_THAT(made.refused.at("plan-ring"), ::testing::HasSubstr("take too long"));
  EXPECT_FALSE(made.refused.contains("plan-optimal"));
}

TEST(PlannedCandidates, NothingForOneGpuNorForOperationsWithoutPlans) {
  const topology::Topology dgx1 = machine("dgx1v");
  EXPECT_TRUE(make_plans(dgx1, {Collective::kAllToAll, 0, 16}).algorithms.empty());
  EXPECT_TRUE(make_plans(planned_machine(dgx1.with_gpus({2})), {Collective::kAllReduce, 0, 16})
                  .algorithms.empty());
}

TEST(PlannedCandidates, AllNamesThatThereMayBeAreKnown) {
  const std::vector<std::string>& known = planned_names();
  for (const char* name : {"dgx1v", "h200-2gpu", "dgx2", "rccl-4gpu-4nic-x2"}) {
    const PlansMade made = make_plans(machine(name), {Collective::kAllReduce, 0, 16});
    for (const PlannedAlgorithm& each : made.algorithms) {
      EXPECT_THAT(known, ::testing::Contains(each.name));
    }
  }
}

}  // namespace
}  // namespace ropewalk::tune
