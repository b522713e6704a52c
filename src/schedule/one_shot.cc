// One-shot: every rank sends its input to all others at once, and each combines all inputs itself,
// in rank order, so that all get the same bits. One hop: the least latency; for small data.
#include "schedule/algorithms.h"
#include "schedule/building.h"
#include "schedule/exchange.h"

namespace ropewalk::schedule {
namespace {

bool one_shot_supports(const Request& request) noexcept {
  switch (request.collective) {
    case Collective::kAllReduce:
    case Collective::kAllGather:
    case Collective::kReduceScatter:
      return affordable(2.0 * request.num_ranks * request.num_ranks * request.channels);
    default: return false;
  }
}

Schedule compile_one_shot(const Request& request) {
  const int ranks = request.num_ranks;
  Schedule schedule = blank("one_shot", request, 1, request.channels);
  for (int rank = 0; rank < ranks; ++rank) {
    int channel = 0;
    for (StepList& steps : schedule.programs[static_cast<std::size_t>(rank)]) {
      switch (request.collective) {
        case Collective::kAllReduce:
          steps.push_back(send(0, {Operand::input()}, peers_after(rank, ranks, channel)));
          steps.push_back(finish(0, all_in_rank_order(rank, ranks)));
          break;
        case Collective::kAllGather: add_exchange_all_gather(steps, rank, ranks, channel); break;
        default: add_exchange_reduce_scatter(steps, rank, ranks, channel, {}); break;
      }
      ++channel;
    }
  }
  return schedule;
}

}  // namespace

const Algorithm kOneShot{"one_shot", "each rank sends all to all, in one hop; for small data",
                         one_shot_supports, compile_one_shot};

}  // namespace ropewalk::schedule
