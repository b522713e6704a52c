// A machine's file of any form that can be read.
#pragma once

#include <string>
#include <string_view>

#include "topology/topology.h"

namespace ropewalk::topology {

/// JSON (topology/json.h), NCCL's topology XML (topology/nccl_xml.h) or hwloc's XML
/// (topology/hwloc_xml.h), told apart by how the text begins.
///
/// @throws Error kInvalidArgument naming file and line or path; for texts of no known form
Topology read_topology(std::string_view text, std::string_view origin);

/// The same of a file, or of a pipe.
///
/// @throws Error kInvalidArgument as read_topology(); for a file that is not there, is longer than
///         kMaxFileBytes, or is no text; kSystem for one that this process may not read
Topology read_file(const std::string& path);

}  // namespace ropewalk::topology
