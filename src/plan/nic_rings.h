// Rings over several hosts whose NICs a rule chose (plan/nic_assignment.h), for every collective
// that plans are made for.
#pragma once

#include "plan/nic_assignment.h"
#include "plan/problem.h"

namespace ropewalk::plan {

/// The rings of plan/channel_rings.h, all with the same share, as fast as the busiest link lets
/// them be. Channels that are the same ring are one tree with their shares together.
///
/// @throws Error kInvalidArgument as make_channels() and rings_of_channels(); where some GPUs of
/// the
///         machine do not take part; where a ring needs links that the plane does not have
std::vector<Tree> plan_nic_rings(const Problem& problem, NicRule rule);

}  // namespace ropewalk::plan
