// Whether plans could serve ranks whose machine was found better than the registry's schedules do.
// Where they could not, none are made: joining and calls take no longer, and prices stay measured.
#pragma once

#include "topology/topology.h"
#include "tune/group_facts.h"

namespace ropewalk::tune {

/// GPUs. True for three and more of one host that NVLink (or xGMI) connects, by links of unequal
/// rates or not each with each: a DGX-1, whose rings by number cross pairs that have no link or
/// half of one.
///
/// Not for GPUs that are joined alike, by switches or each with each: all orders of ranks are the
/// same there. Nor where NVLink does not connect all of them, or for several hosts: what their PCIe
/// links, host memory and networks carry for kernels is measured (device_constants.h), and a price
/// by the rates of the links alone would promise more to plans than they can hold.
///
/// @param machine its gpus()[r] is that of rank r
bool worth_planning(const topology::Topology& machine);

/// Host memory: whether there are plans for a group whose machine nobody described. Several hosts
/// with several ranks on one of them, few enough to have a channel for each tree. They are
/// candidates unasked where what the hosts' NICs carry was measured.
bool can_plan(const GroupFacts& facts);

}  // namespace ropewalk::tune
