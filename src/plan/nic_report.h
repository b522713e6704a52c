// What a graph file would change for unmodified NCCL or RCCL: rates, loads and idle NICs of the
// published rules and of the balanced one, the file itself, and the environment to set.
#pragma once

#include <string>

#include "plan/channel_rings.h"
#include "topology/topology.h"

namespace ropewalk::plan {

struct NicReportRequest {
  int host = 0;
  MeasuredNics measured;
  int channels = 0;       ///< 0: chosen
  bool one_rail = false;  ///< the network joins NICs of one rail only
  std::string graph;      ///< a graph file to judge as well; "" for none
};

/// JSON (docs/nic-balance.md has every field). A machine of one host is judged as a pair of two
/// equal.
///
/// @throws Error kInvalidArgument as make_channels() and read_nccl_graph()
std::string nic_report(const topology::Topology& topology, const NicReportRequest& request);

}  // namespace ropewalk::plan
