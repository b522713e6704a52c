// Direct exchanges among all ranks, shared by one_shot, two_shot and direct. Each adds one rank's
// steps on one channel. Sends come first, to peers in staggered order; each goes to a link of its
// own, so one chunk per link is enough however many ranks there are. Channels start with different
// peers: if all began with the same one, each link would be idle for most of the time (on four H100
// stores of 64 blocks reach 287 GB/s so, and 318 in turn).
#pragma once

#include "schedule/schedule.h"

namespace ropewalk::schedule {

/// Blocks 0..ranks-1: every rank collects the block of its number, combined in rank order, and
/// sends it on to `forward`.
void add_exchange_reduce_scatter(StepList& steps, int rank, int num_ranks, int channel,
                                 std::vector<int> forward);

/// Every rank receives the blocks of all others.
void add_exchange_receive_all(StepList& steps, int rank, int num_ranks, int channel);

/// Every rank gives its own block to all others and receives theirs.
void add_exchange_all_gather(StepList& steps, int rank, int num_ranks, int channel);

}  // namespace ropewalk::schedule
