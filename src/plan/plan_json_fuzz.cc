// Arbitrary text, and a real plan with arbitrary edits: the readers throw Error or return, and what
// they return can be written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/testing/edited.h"
#include "plan/json.h"
#include "plan/named_machine.h"
#include "plan/planner.h"

namespace {

using namespace ropewalk;

std::string real_plan() {
  topology::Description machine;
  machine.name = "pair";
  for (const char* id : {"g0", "g1", "sw"}) {
    topology::Node node;
    node.id = id;
    node.rank = static_cast<int>(machine.nodes.size());
    if (node.rank == 2) {
      node.rank = -1;
      node.kind = topology::NodeKind::kPcieSwitch;
    }
    machine.nodes.push_back(node);
  }
  for (const std::size_t gpu : {0U, 1U}) {
    for (const bool out : {true, false}) {
      topology::Link link;
      link.source = out ? gpu : 2;
      link.destination = out ? 2 : gpu;
      link.capacity = 12.5;
      machine.links.push_back(link);
    }
  }
  const topology::Topology made(std::move(machine));
  plan::Request request;
  request.collective = Collective::kAllReduce;
  return plan::write_json(made, plan::make_plan(made, request));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string kPlan = real_plan();
  const std::string text = testing::edited_or_raw(kPlan, data, size);
  try {
    const topology::Topology machine = plan::machine_named_in(text, "plan");
    const plan::Plan made = plan::read_json(text, "plan", machine);
    const std::string written = plan::write_json(machine, made);
    if (plan::write_json(machine, plan::read_json(written, "again", machine)) != written) {
      std::abort();
    }
  } catch (const Error&) {
    return 0;
  }
  return 0;
}
