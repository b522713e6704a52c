// That default plans keep to hops that a driver takes.
#include "plan/driver_hops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "plan/certificate.h"
#include "plan/planner.h"
#include "topology/testing/recorded.h"

namespace ropewalk::plan {
namespace {

Plan plan_of(const topology::Topology& machine, Collective collective, const std::string& plane,
             const std::vector<int>& gpus = {}) {
  Request request;
  request.collective = collective;
  request.selection = {plane, gpus};
  return make_plan(machine, request);
}

std::vector<HopClass> classes(const topology::Topology& machine, const Plan& plan) {
  std::vector<HopClass> out;
  for (const HopClassShare& share : hop_classes(machine, plan)) out.push_back(share.hop_class);
  return out;
}

TEST(DriverHops, WithoutAPlaneBothClassesOfLinksHaveTreesOfTheirOwn) {
  const topology::Topology machine = topology::testing::machine("dgx1v");
  for (const Collective collective : planned_collectives()) {
    const Plan plan = plan_of(machine, collective, "");
    EXPECT_THAT(classes(machine, plan),
                ::testing::ElementsAre(HopClass::kPeerAccess, HopClass::kNoPeerAccess))
        << name(collective);
    EXPECT_EQ(plan.algorithm, "link-classes");
    EXPECT_EQ(plan.plane, "all");
    // Each class at its own rate.
    Fraction sum = plan_of(machine, collective, "nvlink").algbw;
    sum += plan_of(machine, collective, "pcie").algbw;
    EXPECT_EQ(plan.algbw, sum) << name(collective);
    // On the whole machine that is what one graph of all links could have.
    const Certificate found = check(machine, plan);
    EXPECT_TRUE(found.valid && found.optimal)
        << name(collective) << (found.defects.empty() ? "" : found.defects[0]);
  }
}

TEST(DriverHops, OneGraphOfAllLinksPromisesHopsThatNoDriverTakes) {
  const topology::Topology machine = topology::testing::machine("dgx1v");
  const std::vector<int> part{0, 1, 4, 5};
  const Plan graph = plan_of(machine, Collective::kBroadcast, "all", part);
  EXPECT_THAT(classes(machine, graph), ::testing::Contains(HopClass::kNone));
  const Plan real = plan_of(machine, Collective::kBroadcast, "", part);
  EXPECT_THAT(classes(machine, real), ::testing::Not(::testing::Contains(HopClass::kNone)));
  EXPECT_LT(real.algbw, graph.algbw);
  const Certificate found = check(machine, real);
  EXPECT_TRUE(found.valid && found.bound_holds);
  EXPECT_FALSE(found.optimal);
}

TEST(DriverHops, EveryRecordedMachineHasADefaultPlanThatCanBeHad) {
  for (const std::string name : {"cornelis-p100-opa-x2", "dgx-a100", "dgx-a100-x2", "dgx-h100",
                                 "dgx-h100-x2", "dgx1p", "dgx2", "dolphin-k2200-x2", "h200-4gpu",
                                 "mi250-8gcd-x2", "pcie-8gpu-2numa", "rccl-4gpu-4nic-x2"}) {
    const topology::Topology machine = topology::testing::machine(name);
    for (const Collective collective : planned_collectives()) {
      const Plan plan = plan_of(machine, collective, "");
      EXPECT_THAT(classes(machine, plan), ::testing::Not(::testing::Contains(HopClass::kNone)))
          << name << " " << ropewalk::name(collective) << " " << plan.algorithm;
      const Certificate found = check(machine, plan);
      EXPECT_TRUE(found.valid && found.bound_holds) << name;
    }
  }
}

}  // namespace
}  // namespace ropewalk::plan
