#include "schedule/building.h"

#include <algorithm>

#include "schedule/layout.h"
#include "schedule/limits.h"

namespace ropewalk::schedule {

Schedule blank(std::string_view algorithm, const Request& request, int parts, int channels) {
  Schedule schedule;
  schedule.collective = request.collective;
  schedule.algorithm = std::string(algorithm);
  schedule.num_ranks = request.num_ranks;
  schedule.root = request.root;
  schedule.parts = parts;
  schedule.weight.assign(static_cast<std::size_t>(channels), 1);
  schedule.programs.assign(static_cast<std::size_t>(request.num_ranks),
                           std::vector<StepList>(static_cast<std::size_t>(channels)));
  return schedule;
}

Schedule alone(std::string_view algorithm, const Request& request) {
  Schedule schedule = blank(algorithm, request, 1, request.channels);
  for (StepList& steps : schedule.programs[0]) {
    steps.push_back(reduces(request.collective) ? finish(0, {Operand::input()})
                                                : write(0, {Operand::input()}));
  }
  return schedule;
}

Step send(int block, std::vector<Operand> operands, std::vector<int> peers) {
  return {block, std::move(operands), /*write_output=*/false, /*finished=*/false, std::move(peers)};
}

Step write(int block, std::vector<Operand> operands, std::vector<int> peers) {
  return {block, std::move(operands), /*write_output=*/true, /*finished=*/false, std::move(peers)};
}

Step finish(int block, std::vector<Operand> operands, std::vector<int> peers) {
  return {block, std::move(operands), /*write_output=*/true, /*finished=*/true, std::move(peers)};
}

std::vector<Operand> all_in_rank_order(int rank, int num_ranks) {
  std::vector<Operand> operands;
  operands.reserve(static_cast<std::size_t>(num_ranks));
  for (int r = 0; r < num_ranks; ++r) {
    operands.push_back(r == rank ? Operand::input() : Operand::link(r));
  }
  return operands;
}

std::vector<int> peers_after(int rank, int num_ranks, int channel) {
  std::vector<int> peers;
  peers.reserve(static_cast<std::size_t>(num_ranks));
  for (int i = 0; i < num_ranks - 1; ++i) {
    peers.push_back(around(rank, 1 + (channel + i) % (num_ranks - 1), num_ranks));
  }
  return peers;
}

std::vector<int> peers_before(int rank, int num_ranks, int channel) {
  std::vector<int> peers = peers_after(rank, num_ranks, channel);
  for (int& peer : peers) peer = around(rank, rank - peer, num_ranks);
  return peers;
}

int around(int rank, int distance, int num_ranks) {
  return ((rank + distance) % num_ranks + num_ranks) % num_ranks;
}

std::vector<int> ring_order(int num_ranks, int first, int channel) {
  std::vector<int> order;
  order.reserve(static_cast<std::size_t>(num_ranks));
  const int direction = channel % 2 == 0 ? 1 : -1;
  for (int i = 0; i < num_ranks; ++i) order.push_back(around(first, direction * i, num_ranks));
  return order;
}

std::vector<int> ring_order(const Request& request, int first, int channel) {
  if (request.order.empty()) return ring_order(request.num_ranks, first, channel);
  const auto at = static_cast<int>(std::ranges::find(request.order, first) - request.order.begin());
  std::vector<int> order = ring_order(request.num_ranks, at, channel);
  for (int& rank : order) rank = request.order[static_cast<std::size_t>(rank)];
  return order;
}

bool affordable(double steps) noexcept { return steps <= static_cast<double>(kMaxSteps); }

}  // namespace ropewalk::schedule
