// Ring: every rank sends to the next and receives from the previous one only.
//
// all_reduce, reduce_scatter, all_gather: Patarasuk and Yuan, "Bandwidth optimal all-reduce
// algorithms for clusters of workstations" (2009): each link carries 2(N-1)/N of the data, which is
// the least that any algorithm can do. broadcast and reduce follow the ring from (to) the root and
// pipeline over the chunks. all_to_all hands each block on, hop by hop: for machines where only
// neighbours are linked.
#include "schedule/algorithms.h"
#include "schedule/building.h"
#include "schedule/tree.h"

namespace ropewalk::schedule {
namespace {

/// One rank's position in the ring; positions wrap around, so at(-1) is the previous rank.
struct Position {
  const std::vector<int>& order;
  int index;
  [[nodiscard]] int at(int distance) const {
    const int n = static_cast<int>(order.size());
    return order[static_cast<std::size_t>(around(index, distance, n))];
  }
  [[nodiscard]] int size() const { return static_cast<int>(order.size()); }
};

/// The block of a rank starts at the next one, collects contributions all around and arrives at its
/// rank with all. `forward`: that rank also sends it on, for the all-gather half of an all-reduce.
void reduce_scatter(StepList& steps, const Position& position, bool forward) {
  const int next = position.at(1);
  const Operand previous = Operand::link(position.at(-1));
  steps.push_back(send(position.at(-1), {Operand::input()}, {next}));
  for (int k = 2; k < position.size(); ++k) {
    steps.push_back(send(position.at(-k), {previous, Operand::input()}, {next}));
  }
  std::vector<int> peers;
  if (forward) peers.push_back(next);
  steps.push_back(finish(position.at(0), {previous, Operand::input()}, std::move(peers)));
}

/// The blocks of the others come by, the previous rank's first; the last one stops here.
void pass_around(StepList& steps, const Position& position) {
  const Operand previous = Operand::link(position.at(-1));
  for (int k = 1; k < position.size() - 1; ++k) {
    steps.push_back(write(position.at(-k), {previous}, {position.at(1)}));
  }
  steps.push_back(write(position.at(1), {previous}));
}

/// Distance by distance, the block of the pair (source, destination) walks from one to the other.
/// All ranks do the same at each time, so the links keep one order and one chunk each suffices.
void all_to_all(StepList& steps, const Position& position) {
  const int n = position.size();
  const auto block = [&](int source, int destination) {
    return position.at(source) * n + position.at(destination);
  };
  const Operand previous = Operand::link(position.at(-1));
  steps.push_back(write(block(0, 0), {Operand::input()}));
  for (int distance = 1; distance < n; ++distance) {
    steps.push_back(send(block(0, distance), {Operand::input()}, {position.at(1)}));
    for (int hop = 1; hop < distance; ++hop) {
      steps.push_back(send(block(-hop, distance - hop), {previous}, {position.at(1)}));
    }
    steps.push_back(write(block(-distance, 0), {previous}));
  }
}

bool ring_supports(const Request& request) noexcept {
  const double ranks = request.num_ranks;
  switch (request.collective) {
    case Collective::kAllReduce:
    case Collective::kAllGather:
    case Collective::kReduceScatter: return affordable(2 * ranks * ranks * request.channels);
    case Collective::kBroadcast:
    case Collective::kReduce: return true;
    case Collective::kAllToAll: return affordable(ranks * ranks * ranks / 2 * request.channels);
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kSendRecv: return false;
  }
  return false;
}

Schedule compile_ring(const Request& request) {
  const int parts = request.collective == Collective::kAllReduce ? request.num_ranks : 1;
  Schedule schedule = blank("ring", request, parts, request.channels);
  for (int channel = 0; channel < request.channels; ++channel) {
    const std::vector<int> order = ring_order(request, request.root, channel);
    if (request.collective == Collective::kBroadcast) {
      add_tree_broadcast(schedule, channel, path_tree(request.num_ranks), order);
      continue;
    }
    if (request.collective == Collective::kReduce) {
      add_tree_reduce(schedule, channel, path_tree(request.num_ranks), order);
      continue;
    }
    for (int index = 0; index < request.num_ranks; ++index) {
      const Position position{order, index};
      StepList& steps = schedule.programs[static_cast<std::size_t>(position.at(0))]
                                         [static_cast<std::size_t>(channel)];
      if (request.collective == Collective::kAllToAll) {
        all_to_all(steps, position);
      } else if (request.collective == Collective::kAllGather) {
        steps.push_back(write(position.at(0), {Operand::input()}, {position.at(1)}));
        pass_around(steps, position);
      } else {
        const bool both = request.collective == Collective::kAllReduce;
        reduce_scatter(steps, position, both);
        if (both) pass_around(steps, position);
      }
    }
  }
  return schedule;
}

}  // namespace

const Algorithm kRing{"ring", "each rank talks to its two neighbours; least data per link",
                      ring_supports, compile_ring};

}  // namespace ropewalk::schedule
