// The same schedule over more strands, for executors with many.
#pragma once

#include "schedule/schedule.h"

namespace ropewalk::schedule {

/// `schedule` with every channel there `times` times in a row, which share what it carried. The
/// elements that a rank handles are the same but for the rounding of shares.
/// @throws Error kInvalidArgument unless times >= 1
Schedule repeated(const Schedule& schedule, int times);

}  // namespace ropewalk::schedule
