// Requests of simulations as JSON: what the C API and the program ropewalk-simgrid are given.
#pragma once

#include <string>
#include <string_view>

#include "schedule/simulate.h"
#include "schedule/traffic.h"

namespace ropewalk::schedule {

/// {"bytes": N, "chunk_bytes": N, "most_messages": N, "paced": BOOL}, all of which may be left out.
/// @throws Error kInvalidArgument naming the field that is unknown or of another type
TrafficOptions simulation_options(std::string_view json);

/// A request in one text, for a process that is given nothing else.
struct SimulationRequest {
  std::string plan;      ///< JSON, or
  std::string schedule;  ///< text form
  std::string topology;  ///< JSON
  TrafficOptions options{};
  double engine_seconds = 0;  ///< SimulationEngine::most_seconds
};

/// The fields of simulation_options(), and {"plan": TEXT or "schedule": TEXT, "topology": TEXT,
/// "engine_seconds": N}. @throws Error kInvalidArgument as there; also for missing texts
SimulationRequest simulation_request(std::string_view json);

/// Reads the texts and plays. @param engine whose most_seconds the request has
/// @throws Error as the readers and simulate(); kInvalidUsage for a schedule that the checker
///         refuses
std::string simulate(const SimulationRequest& request, SimulationEngine engine);

}  // namespace ropewalk::schedule
