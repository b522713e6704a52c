// First part of the checker: does every step say something that can be done at all?
#pragma once

#include <string>

#include "schedule/defects.h"
#include "schedule/schedule.h"

namespace ropewalk::schedule {

/// Reports values out of range and contradictions, checking each step alone. Only a schedule
/// without such a defect may go to the symbolic run, which uses its values as indices. Memory use
/// is bounded by the schedule's own size.
void check_form(const Schedule& schedule, int slots, Defects& defects);

/// "rank 1, channel 0, step 3 (b1: 0 + in => out)"
std::string step_name(int rank, int channel, std::size_t number, const Step& step);

}  // namespace ropewalk::schedule
