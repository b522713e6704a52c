#include "plan/named_machine.h"

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "plan/json.h"
#include "plan/planner.h"
#include "topology/testing/recorded.h"

namespace ropewalk::plan {
namespace {

TEST(NamedMachine, IsEnoughToReadThePlanBack) {
  for (const char* name : {"dgx1v", "rccl-4gpu-4nic-x2", "h200-2gpu"}) {
    const topology::Topology machine = topology::testing::machine(name);
    for (const Collective collective : planned_collectives()) {
      Request request;
      request.collective = collective;
      const Plan plan = make_plan(machine, request);
      const std::string json = write_json(machine, plan);
      const topology::Topology named = machine_named_in(json, "p.json");
      EXPECT_EQ(named.name(), name);
      const Plan again = read_json(json, "p.json", named);
      EXPECT_EQ(again.trees.size(), plan.trees.size());
      EXPECT_EQ(again.algbw, plan.algbw);
      EXPECT_EQ(again.optimal, plan.optimal);
    }
  }
}

TEST(NamedMachine, LeavesWhatIsMalformedToTheReader) {
  EXPECT_EQ(
      machine_named_in(R"({"gpus": ["a", 3, "", "a", "x y"], "links": 7})", "p").gpus().size(), 1U);
  EXPECT_EQ(machine_named_in(R"({"links": [{"source": "a", "destination": "a", "type": "pcie"},
      {"source": "a", "destination": "b", "type": "rope"}, 5,
      {"source": "a", "destination": "b", "type": "pcie", "capacity": -1}]})",
                             "p")
                .links()
                .size(),
            1U);
  EXPECT_TRUE(machine_named_in("[1, 2]", "p").links().empty());
  for (const char* text : {"", "{", "1e999", "\"\\ud800\""}) {
    try {
      machine_named_in(text, "p.json");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kInvalidArgument);
      EXPECT_EQ(std::string(error.what()).find("p.json: "), 0U);
    }
  }
}

}  // namespace
}  // namespace ropewalk::plan
