// Flows that share links max-min fairly: the engine without any library.
#pragma once

#include <memory>

#include "schedule/simulate.h"

namespace ropewalk::schedule {

/// Max-min fair shares with a limit per flow, by progressive filling (D. Bertsekas and R. Gallager,
/// "Data Networks", 1992, 6.5.2): raise all rates equally; a flow that meets its own limit or a
/// full link stops. A flow starts to flow after the latencies of its path.
///
/// Where the limits of all flows on a link fit its capacity, no shares are computed, so paced
/// traffic costs the length of its paths only. Otherwise shares of all flows that are connected
/// with it by shared links are computed anew at each start and arrival: fine for some hundred flows
/// at a time.
std::unique_ptr<FlowEngine> make_fair_share_engine(const topology::Topology& topology,
                                                   const Traffic& traffic);

}  // namespace ropewalk::schedule
