// Chain: a path of ranks from the root. Every link carries the data once, so chunks stream at the
// full speed of the slowest link; the latency grows with the number of ranks.
//
// gather and scatter forward the blocks of the ranks further out.
#include "schedule/algorithms.h"
#include "schedule/building.h"
#include "schedule/tree.h"

namespace ropewalk::schedule {
namespace {

StepList& steps_of(Schedule& schedule, int rank, int channel) {
  return schedule.programs[static_cast<std::size_t>(rank)][static_cast<std::size_t>(channel)];
}

/// Nearest block first: the root can take it while those from further out are still in transit.
void add_gather(Schedule& schedule, int channel, const std::vector<int>& order) {
  for (std::size_t p = 0; p < order.size(); ++p) {
    StepList& steps = steps_of(schedule, order[p], channel);
    const auto deliver = [&](int block, Operand from) {
      steps.push_back(p == 0 ? write(block, {from}) : send(block, {from}, {order[p - 1]}));
    };
    deliver(order[p], Operand::input());
    for (std::size_t q = p + 1; q < order.size(); ++q) {
      deliver(order[q], Operand::link(order[p + 1]));
    }
  }
}

bool chain_supports(const Request& request) noexcept {
  const double ranks = request.num_ranks;
  switch (request.collective) {
    case Collective::kAllReduce: return affordable(ranks * 128 * request.channels);
    case Collective::kBroadcast:
    case Collective::kReduce: return true;
    case Collective::kGather:
    case Collective::kScatter: return affordable(ranks * ranks / 2 * request.channels);
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
    case Collective::kSendRecv: return false;
  }
  return false;
}

Schedule compile_chain(const Request& request) {
  const Tree path = path_tree(request.num_ranks);
  const bool both = request.collective == Collective::kAllReduce;
  const int parts = both ? tree_all_reduce_parts(path.height()) : 1;
  Schedule schedule = blank("chain", request, parts, request.channels);
  for (int channel = 0; channel < request.channels; ++channel) {
    const std::vector<int> order = ring_order(request, request.root, channel);
    switch (request.collective) {
      case Collective::kAllReduce: add_tree_all_reduce(schedule, channel, path, order); break;
      case Collective::kBroadcast: add_tree_broadcast(schedule, channel, path, order); break;
      case Collective::kReduce: add_tree_reduce(schedule, channel, path, order); break;
      case Collective::kGather: add_gather(schedule, channel, order); break;
      default: add_tree_scatter(schedule, channel, path, order); break;
    }
  }
  return schedule;
}

}  // namespace

const Algorithm kChain{"chain", "a path from the root; full bandwidth, latency grows with ranks",
                       chain_supports, compile_chain};

}  // namespace ropewalk::schedule
