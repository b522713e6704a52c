// What the compilers share: the sentences that a step list is written in, and orders of ranks.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "schedule/compile.h"
#include "schedule/schedule.h"

namespace ropewalk::schedule {

/// A schedule for the request with empty step lists and channels of equal weight.
Schedule blank(std::string_view algorithm, const Request& request, int parts, int channels);

/// The schedule of a single rank, the same for all algorithms: the input becomes the output.
Schedule alone(std::string_view algorithm, const Request& request);

// `operands -> peers`, `operands -> out, peers`, `operands => out, peers`.
Step send(int block, std::vector<Operand> operands, std::vector<int> peers);
Step write(int block, std::vector<Operand> operands, std::vector<int> peers = {});
Step finish(int block, std::vector<Operand> operands, std::vector<int> peers = {});

/// `0 + 1 + in + 3`: all contributions in the order of ranks. A value that every rank combines in
/// this order has the same bits everywhere.
std::vector<Operand> all_in_rank_order(int rank, int num_ranks);

/// rank+1, rank+2, ... around, each channel from another distance on: an order in which no two
/// ranks start with the same peer, and a rank's channels start with all of them.
std::vector<int> peers_after(int rank, int num_ranks, int channel);

/// The ranks that have `rank` at the same index of their peers_after().
std::vector<int> peers_before(int rank, int num_ranks, int channel);

/// The rank at `distance` (any sign) around from `rank`.
int around(int rank, int distance, int num_ranks);

/// The ranks in the order in which channel `channel` visits them, from `first` on. Odd channels go
/// in the opposite direction, so that two channels load both directions of every link.
std::vector<int> ring_order(int num_ranks, int first, int channel);

/// The same around `request.order`, where there is one.
std::vector<int> ring_order(const Request& request, int first, int channel);

/// True when a schedule of about `steps` steps is within kMaxSteps.
bool affordable(double steps) noexcept;

}  // namespace ropewalk::schedule
