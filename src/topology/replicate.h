// Several hosts from the description of one.
#pragma once

#include "topology/topology.h"

namespace ropewalk::topology {

enum class Fabric {
  kOne,    ///< every NIC reaches every NIC, through one ideal network
  kRails,  ///< a network for each NIC place: NIC i reaches NIC i of other hosts
};

/// `hosts` copies of a one-host machine, NICs joined by networks at their line rate (net_gbps).
/// Ids of several hosts get the host before them ("h1.gpu0"); ranks go on from host to host. One
/// host gets the networks too.
///
/// @throws Error kInvalidArgument: not of one host, already with a network, no NIC (with several
///         hosts), a NIC without a line rate, more nodes or links than a Topology may have
Topology replicate(const Topology& host, int hosts, Fabric fabric);

}  // namespace ropewalk::topology
