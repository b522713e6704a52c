// Plans as JSON, schema "ropewalk-plan/1" (docs/planning.md has every field).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "plan/certificate.h"
#include "plan/plan.h"
#include "topology/topology.h"

namespace ropewalk::plan {

/// A longer text is refused before it is parsed.
inline constexpr std::size_t kMaxPlanBytes = std::size_t{256} << 20;

/// One tree and one link per line. Nodes are named by id, ranks by number; a tree's edges name
/// links by their index in the list `links`.
///
/// @param trees        false leaves the trees out; such a text cannot be read back
/// @param certificate  what the checker found, to stand in the text; nullptr: nothing
std::string write_json(const topology::Topology& topology, const Plan& plan, bool trees = true,
                       const Certificate* certificate = nullptr);

/// {"valid", "bound_holds", "optimal", "largest_load", "defects"}
std::string write_json(const Certificate& certificate);

/// {"bound_gbps", "bound", "bottleneck"}
std::string write_json(const topology::Topology& topology, const Bound& bound);

/// Reads a plan back, for the topology that it was made for. Rates, loads and the verdict `optimal`
/// are computed anew from the trees; nothing of it is a proof: see plan/certificate.h.
///
/// @param origin what messages call the text, a file's name say
/// @throws Error kInvalidArgument "ORIGIN: trees[3].weight: what is wrong"; also for nodes or links
///         that `topology` does not have
Plan read_json(std::string_view text, std::string_view origin, const topology::Topology& topology);

}  // namespace ropewalk::plan
