// Topologies as JSON, schema "gpu-topology/1" (docs/topology.md has every field).
//
// read(write(t)) == t. Numbers are written with the fewest digits that give the same double back.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "topology/topology.h"

namespace ropewalk::topology {

/// A longer text is refused before it is parsed.
inline constexpr std::size_t kMaxFileBytes = std::size_t{64} << 20;

/// @param origin what messages call the text, a file's name say
/// @throws Error kInvalidArgument: "ORIGIN: links[3].capacity: what is wrong", or line and column
///         where the text is no JSON. Also for unknown fields (a misspelt one would silently change
///         the machine), a field twice in one object, and nesting deeper than the schema has
Topology read_json(std::string_view text, std::string_view origin);

/// One node and one link per line.
std::string write_json(const Topology& topology);

}  // namespace ropewalk::topology
