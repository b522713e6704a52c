// Where on a machine ranks run. Pure, and the same on every rank that is given the same.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "machine/machine.h"
#include "topology/topology.h"
#include "tune/processors.h"

namespace ropewalk::machine {

/// Where each rank runs, as the ranks reported when they joined.
struct Seats {
  std::vector<int> host_of_rank;             ///< hosts are numbered by their first rank
  std::vector<tune::Processors> processors;  ///< that each rank may run on
  /// As tune::NumaNodes::node_of(), on each rank's host.
  std::vector<int> numa_of_rank{};
};

/// The order in which rings and chains in host memory visit the ranks: tune::ring_by_numa().
std::vector<int> ring_near(const Seats& seats);

/// The NUMA node of each rank's cores: of its host's nodes the one of which it may use the largest
/// part. Ranks that may use several to the same part are spread over these in order.
///
/// @throws Error kInvalidArgument for a host that `topology` does not have, or one without CPUs
std::vector<topology::NodeIndex> place_by_cores(const topology::Topology& topology,
                                                const Seats& seats);

/// The machine with its ranks on their GPUs: `planned` is made where each rank has one of its own.
///
/// A machine whose GPUs have no bus ids (dgx1v) stays as it is, rank r on GPU r. Where GPUs were
/// found and a rank's is not among them, that rank stays at its cores, and there is no `planned`.
///
/// @param bus_ids PCI addresses by rank, in any of the usual spellings
/// @param host_of_rank as in Seats
/// @throws Error kInvalidArgument for a machine that a person described and that does not have a
///         rank's GPU, naming rank, GPU and machine
Machine place(Machine machine, std::span<const std::string> bus_ids,
              std::span<const int> host_of_rank);

}  // namespace ropewalk::machine
