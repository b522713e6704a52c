// What explain() tells of the machine's links, as JSON. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "core/types.h"
#include "topology/topology.h"
#include "tune/choice.h"

namespace ropewalk::comm {

/// The rate that no schedule can exceed on the machine, {"algbw_gbps": GB/s, "words": why}; null
/// for operations without plans, fewer than two ranks, and more than are planned for.
/// @param machine its gpus()[r] is that of rank r
nlohmann::json bound_on(const topology::Topology& machine, Collective collective, int root);

/// The busiest links of a choice: [{"link": "a->b", "type", "capacity", "load"}], GB/s, the load in
/// the limit of long messages.
nlohmann::json limiting_links(const topology::Topology& machine, const tune::Choice& choice);

}  // namespace ropewalk::comm
