// Two-shot: a reduce-scatter and an all-gather, each by direct exchange. Two hops, and as little
// data as a ring; needs links between all ranks.
#include "schedule/algorithms.h"
#include "schedule/building.h"
#include "schedule/exchange.h"

namespace ropewalk::schedule {
namespace {

bool two_shot_supports(const Request& request) noexcept {
  return request.collective == Collective::kAllReduce &&
         affordable(4.0 * request.num_ranks * request.num_ranks * request.channels);
}

Schedule compile_two_shot(const Request& request) {
  const int ranks = request.num_ranks;
  Schedule schedule = blank("two_shot", request, ranks, request.channels);
  for (int rank = 0; rank < ranks; ++rank) {
    int channel = 0;
    for (StepList& steps : schedule.programs[static_cast<std::size_t>(rank)]) {
      add_exchange_reduce_scatter(steps, rank, ranks, channel, peers_after(rank, ranks, channel));
      add_exchange_receive_all(steps, rank, ranks, channel++);
    }
  }
  return schedule;
}

}  // namespace

const Algorithm kTwoShot{"two_shot", "reduce-scatter, then all-gather, each in one hop",
                         two_shot_supports, compile_two_shot};

}  // namespace ropewalk::schedule
