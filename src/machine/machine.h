// The machine that the ranks of a communicator run on: the same value on every rank, so that all
// plan identically. Named by the setting TOPOLOGY, or found (machine/found_hosts.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "core/settings.h"
#include "topology/topology.h"

namespace ropewalk::machine {

struct Machine {
  /// All hosts' graphs as one.
  topology::Topology topology;
  /// Where each rank runs: its GPU, else the NUMA node of its cores.
  std::vector<topology::NodeIndex> node_of_rank;
  /// `topology` with the ranks' GPUs alone, gpus()[r] being that of rank r: what plans are made
  /// for. Null where ranks have no GPU of their own.
  std::shared_ptr<const topology::Topology> planned;
  std::string origin;  ///< for messages: "found", "kept in FILE", "setting TOPOLOGY"
  /// A user described it: contradictions are errors.
  bool described = false;
  std::vector<int> core_of_rank{};  ///< the first that each may run on; empty: not known
};

/// Of `topology`: equal on all ranks, and another one for another machine. 16 hexadecimal digits.
std::string fingerprint(const Machine& machine);

/// The ranks, each near the next one: by host, NUMA node, core, rank. Pure.
std::vector<int> ring_order(const Machine& machine);

/// At most three lines for people: hosts, GPUs, NUMA nodes and NICs; links by class with rates;
/// where the ranks are.
std::vector<std::string> describe(const Machine& machine);

/// The machine that the setting TOPOLOGY names. Collective over all ranks, and equal on all.
///
/// @param given whether any rank has the setting; the same on all
/// @return nullptr where none has it
/// @throws bootstrap::AgreedError what reading it threw where one rank cannot, naming that rank;
/// kInvalidUsage for
///         ranks that have different machines (files are compared by contents, not by name);
///         kInvalidArgument for one with fewer GPUs than the communicator ranks
std::shared_ptr<const Machine> find_machine(bootstrap::Bootstrap& bootstrap, const Config& config,
                                            bool given, Deadline deadline);

}  // namespace ropewalk::machine
