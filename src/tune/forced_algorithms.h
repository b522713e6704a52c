// The setting ALGORITHM.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.h"

namespace ropewalk::tune {

/// Every name that ALGORITHM may have: first those of schedule::algorithms(), in their order, then
/// the plans of tune/planned_candidates.h.
const std::vector<std::string>& algorithm_names();

/// What the text forces: "ring" for all operations, or "all_reduce=ring,broadcast=chain"; "auto"
/// forces nothing. @throws Error kInvalidArgument naming what is unknown
std::map<Collective, std::string> forced_algorithms(std::string_view text);

}  // namespace ropewalk::tune
