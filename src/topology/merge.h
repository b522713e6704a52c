// One machine from several hosts.
#pragma once

#include <span>

#include "topology/topology.h"

namespace ropewalk::topology {

enum class Fabric {
  kOne,    ///< every NIC reaches every NIC, through one ideal network
  kRails,  ///< a network for each NIC index: NIC i reaches NIC i of other hosts
};

/// GB/s that a NIC is assumed to have if its line rate is unknown: 10 Gbit/s.
inline constexpr double kUntoldLineRate = 1.25;

/// Machines of one host each as one machine: hosts[h] becomes host h.
///
/// NICs are joined by networks at their line rate (net_gbps), or at kUntoldLineRate, by links that
/// say `assumed`. Of several hosts, ids get the host before them ("h1.gpu0"); ranks go on from host
/// to host. Hosts may differ in everything, also in how many GPUs and NICs they have; one without a
/// NIC is joined to none, which `assumptions` tell. What is said of the machine as a whole (planes,
/// sources, assumptions) is what the hosts say, each once. Pure: the same hosts in the same order
/// make the same machine.
///
/// @throws Error kInvalidArgument: no host, a machine of several hosts or with a network, more
///         nodes or links than a Topology may have
Topology merge(std::span<const Topology> hosts, Fabric fabric);

}  // namespace ropewalk::topology
