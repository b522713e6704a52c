// The machine as far as a plan's file tells it, for commands that are given a plan alone.
#pragma once

#include <string_view>

#include "topology/topology.h"

namespace ropewalk::plan {

/// A topology with the name, the GPUs and the links that the plan's JSON names, so that read_json()
/// accepts that plan for it. The file does not say what the other nodes are: all of them become
/// PCIe switches of host 0, and links have the latencies of their types. Links that only its
/// bottleneck names have a capacity of 1.
///
/// What is malformed in the file is left out, for read_json() to name.
/// @throws Error kInvalidArgument when the text is no JSON, or longer than kMaxPlanBytes
topology::Topology machine_named_in(std::string_view plan_json, std::string_view origin);

}  // namespace ropewalk::plan
