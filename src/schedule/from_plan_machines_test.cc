// Plans of the described machines as schedules: accepted, and with the loads that the plans
// promise.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "plan/planner.h"
#include "schedule/check.h"
#include "schedule/from_plan.h"
#include "schedule/layout.h"
#include "topology/testing/recorded.h"

namespace ropewalk::schedule {
namespace {

/// Every plane of a machine, or everything where it has none.
std::vector<std::string> planes_of(const topology::Topology& machine) {
  std::vector<std::string> names;
  for (const topology::Plane& plane : machine.planes()) names.push_back(plane.name);
  if (names.empty()) names.emplace_back();
  return names;
}

/// The plan's schedule is accepted, and its bytes on each physical link are the plan's.
void expect_as_promised(const topology::Topology& machine, const plan::Plan& made) {
  const PlannedSchedule planned = from_plan(made);
  const CheckReport report = check(planned.schedule, 2);
  ASSERT_TRUE(report.accepted) << report.defects.front();

  const bool per_rank =
      made.collective == Collective::kAllGather || made.collective == Collective::kReduceScatter;
  const auto ranks = static_cast<double>(made.num_ranks());
  const std::size_t count = std::size_t{1} << 30;
  const double message = 4.0 * static_cast<double>(count) * (per_rank ? ranks : 1);
  const auto counted = bytes_on_links(planned, count, 4, 1, machine.links().size());
  // Each boundary between channels and between parts is off by up to an element, for each tree.
  const double slack = 4.0 * ranks * (planned.schedule.num_channels() + planned.schedule.parts) *
                       planned.schedule.parts;
  ASSERT_LT(slack, message / 1e3);
  double total = 0;
  for (const plan::LinkLoad& link : made.links) {
    const double promised = (link.load / made.algbw).to_double() * message;
    EXPECT_NEAR(counted[static_cast<std::size_t>(link.link)], promised, slack);
    total += promised;
  }
  // Nothing runs where the plan has no load.
  double all = 0;
  for (const double bytes : counted) all += bytes;
  EXPECT_NEAR(all, total, slack * static_cast<double>(made.links.size()));
}

class Machines : public ::testing::TestWithParam<std::string> {};

TEST_P(Machines, SchedulesPutThePlannedBytesOnLinks) {
  const topology::Topology machine = topology::testing::machine(GetParam());
  for (const std::string& plane : planes_of(machine)) {
    for (const Collective collective : plan::planned_collectives()) {
      SCOPED_TRACE(plane + " " + std::string(name(collective)));
      plan::Request request;
      request.collective = collective;
      request.selection.plane = plane;
      // Many trees of many GPUs take long to plan; a few for each root show the same.
      if (machine.gpus().size() > 16 && !has_root(collective)) request.trees_per_root = 2;
      expect_as_promised(machine, plan::make_plan(machine, request));
    }
  }
}

class SeveralHosts : public Machines {};

TEST_P(SeveralHosts, ThreePhaseSchedulesPutThePlannedBytesOnLinks) {
  const topology::Topology machine = topology::testing::machine(GetParam());
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce}) {
    SCOPED_TRACE(std::string(name(collective)));
    plan::Request request;
    request.collective = collective;
    request.algorithm = "three-phase";
    expect_as_promised(machine, plan::make_plan(machine, request));
  }
}

std::vector<std::string> names_of_several_hosts() {
  std::vector<std::string> names = topology::testing::machine_names();
  std::erase_if(
      names, [](const std::string& name) { return topology::testing::machine(name).hosts() == 1; });
  return names;
}

std::string test_name(const ::testing::TestParamInfo<std::string>& given) {
  std::string name = given.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Recorded, Machines,
                         ::testing::ValuesIn(topology::testing::machine_names()), test_name);
INSTANTIATE_TEST_SUITE_P(Recorded, SeveralHosts, ::testing::ValuesIn(names_of_several_hosts()),
                         test_name);

}  // namespace
}  // namespace ropewalk::schedule
