// The setting ALGORITHM.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "core/types.h"

namespace ropewalk::tune {

/// What the text forces: "ring" for all operations, or "all_reduce=ring,broadcast=chain"; "auto"
/// forces nothing. @throws Error kInvalidArgument naming what is unknown
std::map<Collective, std::string> forced_algorithms(std::string_view text);

}  // namespace ropewalk::tune
