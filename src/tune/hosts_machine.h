// The machine that a group on several hosts has, as far as plans for host memory differ by it:
// which ranks share a host. Found with the group, at no cost: no look at any host is needed.
//
// A rank is a node that holds data, on its host's memory; each host has one way to the others. What
// that way and memory carry is the cost model's business, which prices plans and shapes alike by
// measured rates (cost_model.h); for planning it is enough that memory carries ten times as much.
// So equal groups have equal plans, whatever was measured, and find them kept on disk.
#pragma once

#include <span>

#include "topology/topology.h"
#include "tune/group_facts.h"

namespace ropewalk::tune {

/// Whether plans for hosts can be better than shapes, which know no hosts: several hosts, with
/// several ranks on one of them, and not so many that planning takes long.
bool worth_planning(const GroupFacts& facts);

/// Rank r is gpus()[r]. @param host_of_rank  from 0 on
topology::Topology hosts_machine(std::span<const int> host_of_rank);

}  // namespace ropewalk::tune
