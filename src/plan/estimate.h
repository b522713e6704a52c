// How long a plan takes for a message of some size: a first estimate from latencies and rates.
//
// Every hop of a tree costs its links' latencies, once per chunk that passes; chunks follow each
// other through the tree, as large as is best for its longest path (chunk_model.h).
#pragma once

#include <vector>

#include "plan/plan.h"
#include "topology/topology.h"

namespace ropewalk::plan {

/// Microseconds from the first byte's start to the last rank's end for a message of no bytes: the
/// longest path of any tree pair, down or up and down.
double latency_us(const topology::Topology& topology, const Plan& plan);

/// Edges of the longest path in any tree, up and down together.
int hops(const Plan& plan);

/// Bytes from which on a message has `share` (above 0, below 1) of the plan's rate, for each of
/// `shares`, by the same estimate as time_us(): 0 where links have no latency.
std::vector<double> bytes_for_shares(const topology::Topology& topology, const Plan& plan,
                                     const std::vector<double>& shares);

/// Microseconds for `bytes`, all trees at once, each with its best chunk.
double time_us(const topology::Topology& topology, const Plan& plan, double bytes);

}  // namespace ropewalk::plan
