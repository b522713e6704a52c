// Three phases over several hosts: reduce within every host, exchange between hosts, broadcast
// within every host.
//
// G. Wang et al., "Blink: Fast and Generic Collectives for Distributed ML", MLSys 2020, arXiv
// 1910.04940, on several servers. Data is cut into partitions, the same number on every host. A
// partition has a local root on each host; the host's own trees reduce to it. The local roots of a
// partition exchange in one hop in each direction: all send to one of them and have the sum back.
// Then the host's own trees spread it. Chunks go through the phases as a pipeline, so each
// partition's three phases are a tree over all hosts, and the rate is that of the slowest phase.
#pragma once

#include "plan/problem.h"

namespace ropewalk::plan {

/// Broadcast has the last two phases, with the root in place of its host's local roots; reduce the
/// first two. Every GPU with a path to other hosts that passes no other GPU may be a local root,
/// and for all_reduce any host may add up, each for its part of the partitions. Within hosts there
/// are stars where switches join all, else few packed trees (plan/few_trees.h); weights are the
/// best for all of these trees. Problem::trees_per_root is then the most packed trees of a host.
///
/// @throws Error kInvalidArgument when all GPUs are on one host, or a host's GPUs have no path to
///         each other inside it, or none of them has one to other hosts that passes no GPU; and for
///         more GPUs than the search serves
std::vector<Tree> plan_three_phase(const Problem& problem);

}  // namespace ropewalk::plan
