// Whose chunks reach everyone in one call of a schedule.
#pragma once

#include <cstddef>
#include <vector>

#include "schedule/schedule.h"

namespace ropewalk::schedule {

/// The ranks of which every other rank has heard when its call is over, in ascending order. A rank
/// has heard of another one when it has received a chunk that
/// - this one sent, or
/// - a rank sent that had heard of this one before, by a chunk of the same block.
///
/// Steps of different blocks may be reordered (lags.h), those of one block may not: so what is said
/// here holds in every run. With few elements some blocks are empty; their steps are skipped.
///
/// @param count    elements of each unit, as layout.h has them
/// @param granule  of the boundaries between channels and parts
/// @pre the checker accepts the schedule
std::vector<int> heard_by_all(const Schedule& schedule, std::size_t count, std::size_t granule);

}  // namespace ropewalk::schedule
