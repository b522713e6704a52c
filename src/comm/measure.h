// A timed loop over one collective, with a check of the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "comm/communicator.h"

namespace ropewalk::comm {

struct MeasureSpec {
  Collective collective = Collective::kAllReduce;
  std::size_t count = 0;
  DataType type = DataType::kFloat32;
  RedOp op = RedOp::kSum;  ///< kPreMulSum: with scalars of the measurement's own
  int root = 0;            ///< -1: every rank in turn
  bool in_place = false;
  int warmup = 0;
  int iterations = 1;
  bool check = true;
  bool blocking = false;   ///< a barrier after each iteration
  bool on_device = false;  ///< in the memory of the rank's GPU
  int graphs = 0;          ///< on_device: launches of a graph of `iterations` calls; 0: no graph
};

struct MeasureResult {
  double seconds_avg = 0;  ///< per operation: mean over iterations, then over ranks
  double seconds_min = 0;
  double seconds_max = 0;
  std::uint64_t wrong = 0;  ///< elements that differ, over all ranks
  std::string algorithm;
};

/// Collective: all ranks call with equal specs and get the same result.
/// @throws Error kInvalidArgument for an in-place form that does not exist; kInvalidUsage for a
/// rank without a GPU, and for graphs on host memory; as Communicator::run
MeasureResult measure(Communicator& comm, const MeasureSpec& spec);

}  // namespace ropewalk::comm
