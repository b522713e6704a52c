// First part of the checker: does every step say something that can be done at all?
#pragma once

#include <string>

#include "schedule/defects.h"
#include "schedule/schedule.h"

namespace ropewalk::schedule {

/// Reports what is out of range or contradicts itself, looking at each step alone. Only a schedule
/// without such a defect may go to the symbolic run, which indexes by what stands in it. Takes no
/// memory that the schedule's own size does not justify.
void check_form(const Schedule& schedule, int slots, Defects& defects);

/// "rank 1, channel 0, step 3 (b1: 0 + in => out)"
std::string step_name(int rank, int channel, std::size_t number, const Step& step);

}  // namespace ropewalk::schedule
