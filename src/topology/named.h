// A machine as a person names it.
#pragma once

#include <string_view>

#include "topology/topology.h"

namespace ropewalk::topology {

/// A file of any form that read.h knows, or a description as in synthetic.h ("dgx1v", "8gpu:H100").
///
/// @throws Error kInvalidArgument as read_file() and synthetic(); for a folder, and a file that is
///         not there (what ends in .json or .xml, or has a slash)
Topology named(std::string_view file_or_description);

}  // namespace ropewalk::topology
