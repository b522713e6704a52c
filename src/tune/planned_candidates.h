// Plans for the machine as candidates for a collective: which are made, and of which links.
//
// Within a host a driver takes NVLink (or xGMI) between two GPUs that it joins, and PCIe else: a
// hop over PCIe beside NVLink cannot be had by asking for a copy. So plans are made on
//
// - the links between GPUs (NVLink, xGMI) alone, where these connect all ranks: "plan-packed";
// - everything else (PCIe, between sockets, networks) alone, where that does: "plan-optimal-pcie";
// - both of these at once, as one schedule whose channels are those of two plans, each on links of
//   its own and with its share of the data (plan/link_split.h): "plan-optimal-hybrid",
//   "plan-packed-hybrid", "plan-ring-hybrid";
// - all links together where those between GPUs do not connect the ranks, as between hosts:
//   "plan-packed"; of these plans those alone whose every hop is one that a driver takes.
//
// What takes long to plan is left out of a brief request: the estimate follows from the numbers of
// GPUs and links, so that all ranks leave out the same. A thorough one has it (kept_plans.h makes
// such plans in the background), and leaves out what would take half a minute.
//
// Deterministic, so that all ranks make the same. Pure: no clock, no device, no environment.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.h"
#include "plan/plan.h"
#include "topology/topology.h"
#include "tune/routed_schedule.h"

namespace ropewalk::tune {

struct PlansRequest {
  Collective collective = Collective::kAllReduce;
  int root = 0;           ///< 0 for collectives without a root
  int max_channels = 16;  ///< schedules with more are no candidates
  /// For links where steps lag: all-reduces are schedule::Pipelining::kByLags where `max_channels`
  /// suffice for a channel per tree.
  bool lags = false;
  bool thorough = false;  ///< also what takes long to plan
  friend auto operator<=>(const PlansRequest&, const PlansRequest&) = default;
};

/// A candidate as plans: one, or one for each class of links.
struct PlannedAlgorithm {
  std::string name;  ///< "plan-packed"
  std::vector<plan::Plan> plans;
};

struct PlansMade {
  std::vector<PlannedAlgorithm> algorithms;
  std::map<std::string, std::string> refused;  ///< by name, why there is none
  /// Of a brief request: names that a thorough one may have, or have with another plan.
  std::set<std::string> later;
};

struct PlannedCandidates {
  std::vector<std::shared_ptr<const RoutedSchedule>> schedules;
  std::map<std::string, std::string> refused;  ///< as in PlansMade
  std::set<std::string> later;
};

/// Tells apart what two ranks run by: of all schedules and routes. Never 0.
std::uint64_t digest_of(const PlannedCandidates& candidates);

/// The names that candidates may have, in their order.
const std::vector<std::string>& planned_names();

/// Whether the candidate of this name has links beside NVLink (or xGMI) though that connects the
/// ranks.
bool beside_fabric(std::string_view name);

/// The links of `machine`, as plans name them: with planes of its own.
topology::Topology planned_machine(const topology::Topology& machine);

/// Plans; nothing for collectives that have none, and for fewer than two ranks.
/// @param machine of planned_machine(); rank r is gpus()[r]
PlansMade make_plans(const topology::Topology& machine, const PlansRequest& request);

/// As checked schedules. What cannot be compiled is refused with the reason.
PlannedCandidates compile_plans(PlansMade made, const PlansRequest& request);

}  // namespace ropewalk::tune
