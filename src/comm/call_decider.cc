#include "comm/call_decider.h"

#include <algorithm>
#include <vector>

#include "comm/prepared.h"
#include "schedule/layout.h"
#include "schedule/reach.h"

namespace ropewalk::comm {

std::optional<int> decider_of(const CollectiveCall& call, const tune::Choice& choice,
                              const Extent& extent, int most_rooted_ranks) {
  const schedule::Schedule& schedule = choice.schedule->schedule();
  if (choice.algorithm == tune::kGivenSchedule || call.carried == CarriedType::kNothing ||
      schedule.num_ranks < 2) {
    return std::nullopt;
  }
  switch (call.collective) {
    case Collective::kAllReduce:
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll: return 0;
    case Collective::kBroadcast:
    case Collective::kScatter:
    case Collective::kReduce:
    case Collective::kGather: {
      if (schedule.num_ranks > most_rooted_ranks) return std::nullopt;
      const std::vector<int> heard =
          schedule::heard_by_all(schedule, call.count, granule_of(extent.element_bytes));
      if (heard.empty()) return std::nullopt;
      return std::ranges::find(heard, call.root) != heard.end() ? call.root : heard.front();
    }
    case Collective::kSendRecv: return schedule.num_ranks == 2 ? std::optional(0) : std::nullopt;
  }
  return std::nullopt;
}

std::size_t largest_bytes(const CollectiveCall& call, const Extent& extent,
                          int num_ranks) noexcept {
  const int units = std::min(schedule::num_units(call.collective, num_ranks), num_ranks);
  return call.count * extent.element_bytes * static_cast<std::size_t>(units);
}

}  // namespace ropewalk::comm
