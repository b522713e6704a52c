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
  /// GPUs: the last so many channels go over links through the host's memory, beside the others'
  /// links between the GPUs' memories.
  int hybrid_channels = 0;
  double hybrid_share = 0;  ///< of the data, on them
  double hybrid_scale = 1;  ///< HybridLinks::host_scale with which that was calculated
  double hybrid_units = 1;  ///< that go over the busiest link, by both classes
  int hybrid_hops = 1;      ///< of the longest path
};

/// RoutedSchedule::hybrid_channels of a choice's or candidate's schedule, which may have none.
inline int hybrid_channels_of(const std::shared_ptr<const RoutedSchedule>& routed) {
  return routed == nullptr ? 0 : routed->hybrid_channels;
}

}  // namespace ropewalk::tune
