// A simulation's request as JSON: what the C API and the program ropewalk-simgrid are given.
#pragma once

#include <string_view>

#include "schedule/simulate.h"

namespace ropewalk::schedule {

/// {"subject": TEXT, "subject_name": TEXT, "topology": TEXT, "topology_name": TEXT, "bytes": N,
///  "chunk_bytes": N, "most_messages": N, "paced": BOOL}; all but `subject` may be left out.
/// @throws Error kInvalidArgument naming the field that is missing, unknown or of another type
SimulationRequest simulation_request(std::string_view json);

}  // namespace ropewalk::schedule
