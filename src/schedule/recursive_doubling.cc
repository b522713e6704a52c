// Recursive doubling and its relatives: distances 1, 2, 4, ..., so that a logarithmic number of
// hops reaches all ranks. Thakur, Rabenseifner, Gropp, "Optimization of collective communication
// operations in MPICH" (2005); all_gather after Bruck et al., "Efficient algorithms for all-to-all
// communications in multiport message-passing systems" (1997), which takes any number of ranks.
#include <algorithm>
#include <bit>

#include "schedule/algorithms.h"
#include "schedule/building.h"

namespace ropewalk::schedule {
namespace {

bool recursive_doubling_supports(const Request& request) noexcept {
  const double ranks = request.num_ranks;
  switch (request.collective) {
    case Collective::kAllReduce: return affordable(34 * ranks * request.channels);
    case Collective::kAllGather: return affordable(2 * ranks * ranks * request.channels);
    case Collective::kReduceScatter:
      return std::has_single_bit(static_cast<unsigned>(request.num_ranks)) &&
             affordable(2 * ranks * ranks * request.channels);
    default: return false;
  }
}

/// In each round two halves of a growing group exchange what they have and both combine it, the
/// lower ranks' value first, so all ranks get the same bits. The power of two below `ranks` takes
/// part in this, the *core*; of each of the first pairs of ranks the even one gives its input to
/// the odd one before and gets the result after.
void add_all_reduce(StepList& steps, int rank, int ranks) {
  const int core_size = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)));
  const int pairs = ranks - core_size;
  const bool paired = rank < 2 * pairs;
  if (paired && rank % 2 == 0) {
    steps.push_back(send(0, {Operand::input()}, {rank + 1}));
    steps.push_back(write(0, {Operand::link(rank + 1)}));
    return;
  }
  const int core = paired ? rank / 2 : rank - pairs;
  const auto partner = [&](int distance) {
    const int other = core ^ distance;
    return other < pairs ? 2 * other + 1 : other + pairs;
  };
  Operand own = Operand::input();
  if (paired) {
    steps.push_back(write(0, {Operand::link(rank - 1), own}, {partner(1)}));
    own = Operand::output();
  } else {
    steps.push_back(send(0, {own}, {partner(1)}));
  }
  for (int distance = 1; distance < core_size; distance *= 2) {
    const Operand theirs = Operand::link(partner(distance));
    std::vector<Operand> both = {own, theirs};
    if ((core & distance) != 0) std::swap(both[0], both[1]);
    if (2 * distance < core_size) {
      steps.push_back(write(0, std::move(both), {partner(2 * distance)}));
    } else {
      std::vector<int> peers;
      if (paired) peers.push_back(rank - 1);
      steps.push_back(finish(0, std::move(both), std::move(peers)));
    }
    own = Operand::output();
  }
}

/// Bruck: a rank holds the blocks of itself and the next ones, gives as many as it has (or as are
/// missing) to the rank `distance` before it and gets the following ones from the rank `distance`
/// after it. A send goes one block ahead of the receive, which FIFOs of 2 chunks allow.
void add_all_gather(StepList& steps, int rank, int ranks) {
  for (int distance = 1; distance < ranks; distance *= 2) {
    const int before = around(rank, -distance, ranks);
    const int after = around(rank, distance, ranks);
    const int blocks = std::min(distance, ranks - distance);
    const auto give = [&](int i) {
      steps.push_back(send(around(rank, i, ranks), {Operand::output()}, {before}));
    };
    if (distance == 1) {
      steps.push_back(write(rank, {Operand::input()}, {before}));
    } else {
      give(0);
    }
    for (int i = 0; i < blocks; ++i) {
      if (i + 1 < blocks) give(i + 1);
      steps.push_back(write(around(rank, distance + i, ranks), {Operand::link(after)}));
    }
  }
}

/// Recursive halving without scratch memory: a rank handles block x = (number xor rank) in one
/// step, which combines what all partners at distances above x sent of it and sends it over the
/// highest bit of x, to the half where it belongs. The order of the steps: two blocks for the
/// partner at the largest distance, then two that need what comes from it, and so on. So no FIFO of
/// two chunks fills up, and what goes to one partner follows each other, so that it may leave
/// together.
void add_reduce_scatter(StepList& steps, int rank, int ranks) {
  // By falling i, with its bits reversed, but for the largest two distances.
  const auto order = [&](int i) {
    const bool swaps = ranks >= 4;
    const int swapped = swaps ? (i & ~3) | ((i & 1) << 1) | ((i & 2) >> 1) : i;
    int reversed = 0;
    for (int bit = 1, mirrored = ranks / 2; mirrored > 0; bit *= 2, mirrored /= 2) {
      if ((swapped & bit) != 0) reversed |= mirrored;
    }
    return reversed;
  };
  for (int i = ranks - 1; i >= 0; --i) {
    const int x = order(i);
    const int top = static_cast<int>(std::bit_floor(static_cast<unsigned>(x)));
    std::vector<Operand> operands = {Operand::input()};
    for (int distance = ranks / 2; distance > top; distance /= 2) {
      operands.push_back(Operand::link(rank ^ distance));
    }
    if (x == 0) {
      steps.push_back(finish(rank, std::move(operands)));
    } else {
      steps.push_back(send(rank ^ x, std::move(operands), {rank ^ top}));
    }
  }
}

Schedule compile_recursive_doubling(const Request& request) {
  const int ranks = request.num_ranks;
  Schedule schedule = blank("recursive_doubling", request, 1, request.channels);
  for (int rank = 0; rank < ranks; ++rank) {
    for (StepList& steps : schedule.programs[static_cast<std::size_t>(rank)]) {
      switch (request.collective) {
        case Collective::kAllReduce: add_all_reduce(steps, rank, ranks); break;
        case Collective::kAllGather: add_all_gather(steps, rank, ranks); break;
        default: add_reduce_scatter(steps, rank, ranks); break;
      }
    }
  }
  return schedule;
}

}  // namespace

const Algorithm kRecursiveDoubling{"recursive_doubling",
                                   "exchanges at distances 1, 2, 4, ...; few hops",
                                   recursive_doubling_supports, compile_recursive_doubling};

}  // namespace ropewalk::schedule
