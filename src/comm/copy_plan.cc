#include "comm/copy_plan.h"

#include "core/error.h"

namespace ropewalk::comm {

bool made_of_copies(Collective collective) noexcept {
  return collective == Collective::kAllGather || collective == Collective::kAllToAll ||
         collective == Collective::kBroadcast;
}

std::size_t bytes_for_peer(const CollectiveCall& call) noexcept {
  return call.count * size_of(call.type);
}

std::vector<RankCopy> copies_of(const CollectiveCall& call, int rank,
                                const std::vector<std::byte*>& outputs) {
  RW_ASSERT(made_of_copies(call.collective));
  const auto n = static_cast<int>(outputs.size());
  const std::size_t unit = bytes_for_peer(call);
  std::vector<RankCopy> copies;
  if (unit == 0 || (call.collective == Collective::kBroadcast && rank != call.root)) return copies;
  for (int distance = 1; distance <= n; ++distance) {
    const int peer = (rank + distance) % n;
    RankCopy copy;
    copy.peer = peer;
    copy.bytes = unit;
    copy.to = outputs[static_cast<std::size_t>(peer)];
    copy.from = static_cast<const std::byte*>(call.input);
    if (call.collective != Collective::kBroadcast) copy.to += unit * static_cast<std::size_t>(rank);
    if (call.collective == Collective::kAllToAll)
      copy.from += unit * static_cast<std::size_t>(peer);
    if (copy.to != copy.from) copies.push_back(copy);
  }
  return copies;
}

}  // namespace ropewalk::comm
