// Direct: every block goes from where it is to where it belongs over their own link, in one hop.
#include "schedule/algorithms.h"
#include "schedule/building.h"
#include "schedule/exchange.h"

namespace ropewalk::schedule {
namespace {

bool direct_supports(const Request& request) noexcept {
  const double ranks = request.num_ranks;
  switch (request.collective) {
    case Collective::kAllReduce: return false;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll: return affordable(2 * ranks * ranks * request.channels);
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kSendRecv: return true;
  }
  return false;
}

void add_all_to_all(StepList& steps, int rank, int ranks, int channel) {
  for (const int peer : peers_after(rank, ranks, channel)) {
    steps.push_back(send(rank * ranks + peer, {Operand::input()}, {peer}));
  }
  steps.push_back(write(rank * ranks + rank, {Operand::input()}));
  for (const int peer : peers_before(rank, ranks, channel)) {
    steps.push_back(write(peer * ranks + rank, {Operand::link(peer)}));
  }
}

void add_rooted(StepList& steps, const Request& request, int rank, int channel) {
  const int ranks = request.num_ranks;
  const int root = request.root;
  const std::vector<int> peers = peers_after(rank, ranks, channel);
  const bool to_root =
      request.collective == Collective::kReduce || request.collective == Collective::kGather;
  const bool by_rank =
      request.collective == Collective::kGather || request.collective == Collective::kScatter;
  const int own = by_rank ? rank : 0;
  if (rank != root) {
    steps.push_back(to_root ? send(own, {Operand::input()}, {root})
                            : write(own, {Operand::link(root)}));
    return;
  }
  switch (request.collective) {
    case Collective::kBroadcast: steps.push_back(write(0, {Operand::input()}, peers)); break;
    case Collective::kReduce: steps.push_back(finish(0, all_in_rank_order(rank, ranks))); break;
    case Collective::kGather:
      steps.push_back(write(rank, {Operand::input()}));
      for (const int peer : peers) steps.push_back(write(peer, {Operand::link(peer)}));
      break;
    default:
      for (const int peer : peers) steps.push_back(send(peer, {Operand::input()}, {peer}));
      steps.push_back(write(rank, {Operand::input()}));
      break;
  }
}

Schedule compile_direct(const Request& request) {
  const int ranks = request.num_ranks;
  Schedule schedule = blank("direct", request, 1, request.channels);
  for (int rank = 0; rank < ranks; ++rank) {
    int channel = 0;
    for (StepList& steps : schedule.programs[static_cast<std::size_t>(rank)]) {
      switch (request.collective) {
        case Collective::kAllGather: add_exchange_all_gather(steps, rank, ranks, channel); break;
        case Collective::kReduceScatter:
          add_exchange_reduce_scatter(steps, rank, ranks, channel, {});
          break;
        case Collective::kAllToAll: add_all_to_all(steps, rank, ranks, channel); break;
        case Collective::kSendRecv: {
          const int previous = around(rank, -1, ranks);
          steps.push_back(send(rank, {Operand::input()}, {around(rank, 1, ranks)}));
          steps.push_back(write(previous, {Operand::link(previous)}));
          break;
        }
        default: add_rooted(steps, request, rank, channel); break;
      }
      ++channel;
    }
  }
  return schedule;
}

}  // namespace

const Algorithm kDirect{"direct", "each block straight from its source to its destination",
                        direct_supports, compile_direct};

}  // namespace ropewalk::schedule
