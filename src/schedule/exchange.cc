#include "schedule/exchange.h"

#include <utility>

#include "schedule/building.h"

namespace ropewalk::schedule {

void add_exchange_reduce_scatter(StepList& steps, int rank, int num_ranks, int channel,
                                 std::vector<int> forward) {
  for (const int peer : peers_after(rank, num_ranks, channel)) {
    steps.push_back(send(peer, {Operand::input()}, {peer}));
  }
  steps.push_back(finish(rank, all_in_rank_order(rank, num_ranks), std::move(forward)));
}

void add_exchange_receive_all(StepList& steps, int rank, int num_ranks, int channel) {
  for (const int peer : peers_before(rank, num_ranks, channel)) {
    steps.push_back(write(peer, {Operand::link(peer)}));
  }
}

void add_exchange_all_gather(StepList& steps, int rank, int num_ranks, int channel) {
  steps.push_back(write(rank, {Operand::input()}, peers_after(rank, num_ranks, channel)));
  add_exchange_receive_all(steps, rank, num_ranks, channel);
}

}  // namespace ropewalk::schedule
