// A schedule made for one machine, with the physical links that its messages take.
#pragma once

#include <memory>
#include <string>

#include "schedule/checked.h"
#include "schedule/from_plan.h"

namespace ropewalk::tune {

/// The algorithm's name where the user gave the schedule.
inline constexpr const char* kGivenSchedule = "(given)";

struct RoutedSchedule {
  std::string algorithm;  ///< "plan-packed", "plan-optimal", ...
  std::shared_ptr<const schedule::Checked> checked;
  schedule::Routes routes;  ///< other messages take schedule::default_route()
};

}  // namespace ropewalk::tune
