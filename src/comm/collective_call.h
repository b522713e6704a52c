// What a user asked for, validated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/types.h"
#include "executor/fifo.h"

namespace ropewalk::comm {

/// One collective call of one rank. `count` as in schedule/layout.h.
struct CollectiveCall {
  Collective collective = Collective::kAllReduce;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
  DataType type = DataType::kFloat32;
  RedOp op = RedOp::kSum;
  std::uint64_t scalar = 0;  ///< kPreMulSum: one element, in the low bytes
  int root = 0;
};

/// A send or a receive.
struct PointToPointCall {
  bool sends = false;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
  DataType type = DataType::kFloat32;
  int peer = 0;
};

struct Validated {
  bool in_place = false;
};

/// Checks everything that this rank alone can know: ranges, sizes that overflow, null and
/// misaligned buffers, buffers that overlap without being in place.
/// @throws Error kInvalidArgument naming the argument and its value
Validated validate(const CollectiveCall& call, int rank, int num_ranks);
void validate(const PointToPointCall& call, int num_ranks);

/// What both ends of a link compare.
executor::CallTag tag_of(const CollectiveCall& call, std::uint32_t number) noexcept;
executor::CallTag tag_of(const PointToPointCall& call) noexcept;

}  // namespace ropewalk::comm
