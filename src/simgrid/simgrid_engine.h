// SimGrid's flow-level network model as a FlowEngine.
//
// H. Casanova, A. Giersch, A. Legrand, M. Quinson, F. Suter, "Versatile, scalable, and accurate
// simulation of distributed applications and platforms", J. Parallel Distrib. Comput. 74 (2014).
#pragma once

#include <memory>
#include <vector>

#include "schedule/simulate.h"

namespace ropewalk::simgrid {

/// The model is CM02 (max-min fair) without the corrections for TCP: a window too large to limit,
/// no share for the return path, bandwidths and latencies as the topology has them. Every path
/// becomes a zone of two hosts with one route over shared links.
///
/// SimGrid keeps its state in globals: one engine per process.
std::unique_ptr<schedule::FlowEngine> make_simgrid_engine(const topology::Topology& topology,
                                                          const schedule::Traffic& traffic);

/// Roughly how long that engine needs to play it.
double simgrid_seconds(const schedule::Traffic& traffic);

}  // namespace ropewalk::simgrid
