// From a topology to a plan: the one entry point, and the registry of algorithms.
//
// Planning is pure: no clock, no device, no environment. The same topology and request give the
// same plan everywhere.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/types.h"
#include "plan/network.h"
#include "plan/plan.h"
#include "topology/topology.h"

namespace ropewalk::plan {

struct Request {
  Collective collective = Collective::kAllGather;
  Selection selection;
  int root = 0;  ///< rank (of the plan) of broadcast and reduce
  /// A name of algorithms(), or "auto": the one with the best rate. Without a plane, "auto" gives
  /// what a program can have from a driver (plan/driver_hops.h): where links between GPUs and
  /// others each connect all ranks, trees for each of the two classes; else of one graph, as the
  /// algorithms by name do, but without hops that no driver takes. The plane "all" is one graph for
  /// any of them.
  std::string algorithm = "auto";
  int trees_per_root = 0;  ///< 0: as many as the best rate needs
};

/// Plans keep below so many tree edges, which need some 4 GiB with all that leads to them.
inline constexpr double kMostTreeEdges = 1 << 24;

/// The most GPUs that plans of a collective may have for that: 2896 for all_reduce, else 4096.
int most_ranks(Collective collective);

/// One algorithm, as `ropewalk plan --algorithm` names it.
struct AlgorithmInfo {
  std::string_view name;
  std::string_view help;
  std::vector<Collective> collectives;
};

/// All of them, the exact ones first.
const std::vector<AlgorithmInfo>& algorithms();

/// The operations that plans are made for: all_reduce, all_gather, reduce_scatter, broadcast,
/// reduce.
const std::vector<Collective>& planned_collectives();

/// @throws Error kInvalidArgument for what make_network refuses, for unknown algorithms, operations
///         without plans, roots that are not there, more than most_ranks() GPUs, and algorithms
///         that cannot serve the request (the message says why)
/// @throws Error kSystem when memory runs out; the message says for what
Plan make_plan(const topology::Topology& topology, const Request& request);

/// The bound of a request alone, without any trees: fast also for thousands of GPUs.
Bound make_bound(const topology::Topology& topology, const Request& request);

}  // namespace ropewalk::plan
