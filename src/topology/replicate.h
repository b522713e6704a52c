// Several hosts from the description of one.
#pragma once

#include "topology/merge.h"
#include "topology/topology.h"

namespace ropewalk::topology {

/// `hosts` copies of a one-host machine, merged (topology/merge.h). One host gets the networks too.
///
/// @throws Error kInvalidArgument: not of one host, already with a network, no NIC (with several
///         hosts), a NIC without a line rate, more nodes or links than a Topology may have
Topology replicate(const Topology& host, int hosts, Fabric fabric);

}  // namespace ropewalk::topology
