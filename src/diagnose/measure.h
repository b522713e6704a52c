// A timed loop over one collective, with a check of the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace ropewalk::diagnose {

/// Where ranks wait for each other in the timed loop, besides in the collective itself.
enum class MeasureBarrier {
  kNone,
  kOperation,  ///< after each operation; its time counts
  kIteration,  ///< after each iteration; its time does not count
};

struct MeasureSpec {
  Collective collective = Collective::kAllReduce;
  std::size_t count = 0;
  DataType type = DataType::kFloat32;
  RedOp op = RedOp::kSum;  ///< kPreMulSum: with scalars of the measurement's own
  int root = 0;            ///< -1: every rank in turn
  bool in_place = false;
  int warmup = 0;
  int iterations = 1;
  int operations = 1;       ///< in each iteration
  std::size_t unalign = 0;  ///< elements by which buffers are off the start of a page
  int check = 1;            ///< verified rounds, with fresh data, after the timed loop
  MeasureBarrier barrier = MeasureBarrier::kNone;
  bool per_iteration = false;  ///< keep the time of each iteration
  bool on_device = false;      ///< in the memory of the rank's GPU
  int graphs = 0;              ///< on_device: launches of a graph of all iterations; 0: no graph
  bool registered = false;     ///< on_device: the buffers are registered first
  /// Each operation takes the memory after that of the one before, cyclically, within buffers of so
  /// many bytes, so that its data comes from memory; lines are shared by no two operations. 0: all
  /// take the same memory, and data comes from the caches that hold it.
  std::size_t region = 0;
  /// Host memory, out of place, collectives whose input and output are one unit (all_reduce,
  /// broadcast, reduce): buffers of a multiple of so many bytes show the same memory each period,
  /// so that long messages need little of it. The output of one rank (`root`, else rank 0) is
  /// whole, and verified whole; of the others' output, what was written last in each period. Such
  /// buffers do not move (`region`). 0: all buffers are whole.
  std::size_t period = 0;
};

struct MeasureResult {
  double seconds_avg = 0;  ///< per operation: mean over iterations, then over ranks
  double seconds_min = 0;
  double seconds_max = 0;
  double seconds_rank0 = 0;
  std::uint64_t wrong = 0;  ///< elements that differ, over all ranks
  std::string algorithm;
  /// Per operation, of each iteration of this thread's ranks; empty unless they were asked for.
  std::vector<double> iteration_seconds;
};

/// Collective: all ranks call with equal specs and get the same result.
/// @throws Error kInvalidArgument for an in-place form that does not exist; kInvalidUsage for a
/// rank without a GPU, and for graphs and registered buffers on host memory; as Communicator::run
MeasureResult measure(comm::Communicator& comm, const MeasureSpec& spec);

/// The same for several ranks of one communicator, of which this thread makes each call in one
/// group. Other threads and processes call for theirs, with however many.
/// @throws Error as above; kInvalidArgument for `comms` that are not different ranks of one. What
/// is wrong with `comms` or the spec changes nothing; after any other error all of them are broken
MeasureResult measure(std::span<comm::Communicator* const> comms, const MeasureSpec& spec);

}  // namespace ropewalk::diagnose
