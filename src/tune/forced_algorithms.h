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

struct ForcedAlgorithm {
  std::string name;
  /// Named for this operation, not for all: that it cannot do it is an error then. One for all is
  /// passed over where it cannot.
  bool for_this_operation = false;
};

/// What the text forces: "ring" for all operations, or "all_reduce=ring,broadcast=chain"; "auto"
/// forces nothing.
/// @throws Error kInvalidArgument naming the unknown word
std::map<Collective, ForcedAlgorithm> forced_algorithms(std::string_view text);

}  // namespace ropewalk::tune
