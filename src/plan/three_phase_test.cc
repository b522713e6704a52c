#include "plan/three_phase.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/index.h"
#include "core/testing/in_child.h"
#include "plan/certificate.h"
#include "plan/planner.h"
#include "topology/testing/recorded.h"

namespace ropewalk::plan {
namespace {

using ::testing::HasSubstr;

Request request(Collective collective, int root = 0) {
  Request out;
  out.collective = collective;
  out.algorithm = "three-phase";
  out.root = root;
  return out;
}

int host_of(const topology::Topology& machine, const Plan& plan, int rank) {
  return machine.node(at(plan.gpus[at(rank)])).host;
}

/// Edges that cross hosts, in the order of the tree.
std::vector<TreeEdge> between(const topology::Topology& machine, const Plan& plan,
                              const std::vector<TreeEdge>& edges) {
  std::vector<TreeEdge> out;
  for (const TreeEdge& edge : edges) {
    if (host_of(machine, plan, edge.source) != host_of(machine, plan, edge.destination)) {
      out.push_back(edge);
    }
  }
  return out;
}

class ThreePhase : public ::testing::TestWithParam<std::string> {};

// One hop from every other host to the root's, and one back; everything else is within hosts.
TEST_P(ThreePhase, TreesCrossHostsInOneHopEachWay) {
  const topology::Topology machine = topology::testing::machine(GetParam());
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce}) {
    SCOPED_TRACE(std::string(name(collective)));
    const Plan plan = make_plan(machine, request(collective, 1));
    const Certificate found = check(machine, plan);
    EXPECT_TRUE(found.valid) << (found.defects.empty() ? "" : found.defects[0]);
    const std::size_t others = at(machine.hosts() - 1);
    std::set<int> centres;
    for (const Tree& tree : plan.trees) {
      const int home = host_of(machine, plan, tree.root);
      centres.insert(home);
      const std::vector<TreeEdge> up = between(machine, plan, tree.reduce);
      const std::vector<TreeEdge> down = between(machine, plan, tree.broadcast);
      EXPECT_EQ(up.size(), collective == Collective::kBroadcast ? 0 : others);
      EXPECT_EQ(down.size(), collective == Collective::kReduce ? 0 : others);
      for (const TreeEdge& edge : up) EXPECT_EQ(host_of(machine, plan, edge.destination), home);
      for (const TreeEdge& edge : down) EXPECT_EQ(host_of(machine, plan, edge.source), home);
    }
    if (has_root(collective)) {
      EXPECT_EQ(centres.size(), 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recorded, ThreePhase,
                         ::testing::Values("dgx-a100-x2", "dgx-h100-x2", "cornelis-p100-opa-x2",
                                           "forestcoll-a100-x2", "mi250-8gcd-x2",
                                           "rccl-4gpu-1nic-x2", "rccl-4gpu-4nic-x2",
                                           "dolphin-k2200-x2"),
                         [](const auto& given) {
                           std::string name = given.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(ThreePhaseRates, AreNearTheBoundWhereHostsAreAlike) {
  const topology::Topology machine = topology::testing::machine("dgx-h100-x2");
  const Plan plan = make_plan(machine, request(Collective::kAllReduce));
  // The stars within hosts use each GPU's port for all of its host's partitions: the rate of one
  // host, while NICs still have room.
  EXPECT_NEAR(plan.algbw.to_double(), 450.0 * 8 / 14, 1e-3);
  EXPECT_GT(plan.algbw / plan.bound.algbw, Fraction(19, 20));
}

std::string phase_refusal(const topology::Topology& machine, const Request& wanted) {
  return testing::complaint([&] { (void)make_plan(machine, wanted); });
}

TEST(ThreePhaseRefusals, SayWhatIsMissing) {
  EXPECT_THAT(phase_refusal(topology::testing::machine("dgx1v"), request(Collective::kAllReduce)),
              HasSubstr("all GPUs are on one host"));
  EXPECT_THAT(
      phase_refusal(topology::testing::machine("dgx-h100-x2"), request(Collective::kAllGather)),
      HasSubstr("three-phase makes no plans for all_gather"));
}

}  // namespace
}  // namespace ropewalk::plan
