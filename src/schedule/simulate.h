// Simulation: how long traffic takes on a topology, and how busy every link is meanwhile.
//
// Flow level: a chunk in transit is a flow over all links of its path at once, delayed by their
// latencies; flows that share a link share its rate. The engine decides how:
// FairShareEngine here, SimGrid's network models in the program `ropewalk-simgrid`. Copies, adds
// and the ranks' own work cost no time: the result says what links allow, not what processors do.
//
// Threads: one at a time per object. No clock, no device.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.h"
#include "schedule/checked.h"
#include "schedule/traffic.h"
#include "topology/topology.h"

namespace ropewalk::schedule {

/// Moves flows over links and reports when they arrive.
class FlowEngine {
 public:
  FlowEngine() = default;
  FlowEngine(const FlowEngine&) = delete;
  FlowEngine& operator=(const FlowEngine&) = delete;
  virtual ~FlowEngine() = default;

  /// Starts `bytes` on path `path` of the traffic as flow `flow`, which is not in transit; no
  /// faster than `gbps` unless that is 0.
  virtual void start(int flow, int path, double bytes, double gbps) = 0;

  /// Runs until no flow is left. Calls `arrived(flow, seconds)` at each arrival, in the order of
  /// time; it may start flows.
  virtual void run(const std::function<void(int, double)>& arrived) = 0;
};

/// Makes an engine for a topology and what will be played on it, which outlives the engine.
using EngineFactory =
    std::function<std::unique_ptr<FlowEngine>(const topology::Topology&, const Traffic&)>;

struct Outcome {
  double seconds = 0;
  double messages = 0;
  std::vector<double> link_bytes;  ///< by index into Topology::links
  double bin_seconds = 0;
  /// [link][bin]: share of the link's capacity in use; empty for links that carried nothing.
  std::vector<std::vector<double>> utilisation;
};

/// Plays the traffic.
/// @throws Error kInternal when strands are stuck, which the checker excludes for schedules
Outcome play(const topology::Topology& topology, const Traffic& traffic, FlowEngine& engine);

/// How long an engine needs to play the traffic, roughly, in seconds.
using EngineCost = std::function<double(const Traffic&)>;

struct SimulationEngine {
  std::string_view name;  ///< for the report
  EngineFactory make;
  EngineCost cost{};
  double most_seconds = 0;  ///< refuse what `cost` says takes longer; 0: nothing
};

/// Plays a plan that was made for `topology`, or read for it.
/// @return JSON (docs/simulation.md has every field)
/// @throws Error kInvalidArgument for bytes or chunks that are not positive and finite, for trees
///         that from_plan() refuses; kTimeout before it starts where the engine takes too long
std::string simulate(const topology::Topology& topology, const plan::Plan& plan,
                     const TrafficOptions& options, const SimulationEngine& engine);

/// Plays a schedule, whose messages take default_route(). As above.
/// @throws Error kInvalidArgument also as traffic_of()
std::string simulate(const topology::Topology& topology, const Checked& checked,
                     const TrafficOptions& options, const SimulationEngine& engine);

}  // namespace ropewalk::schedule
