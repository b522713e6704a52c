// A user's call, validated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/types.h"
#include "executor/fifo.h"
#include "trace/operation.h"

namespace ropewalk::comm {

/// One collective call of one rank. `count` as in schedule/layout.h.
struct CollectiveCall {
  Collective collective = Collective::kAllReduce;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
  DataType type = DataType::kFloat32;
  CarriedType carried = CarriedType::kNone;  ///< else `count` and `type` are of its carrier
  RedOp op = RedOp::kSum;
  std::uint64_t scalar = 0;  ///< kPreMulSum: one element, in the low bytes
  int root = 0;
  friend bool operator==(const CollectiveCall&, const CollectiveCall&) = default;
};

/// A send or a receive.
struct PointToPointCall {
  bool sends = false;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
  DataType type = DataType::kFloat32;
  CarriedType carried = CarriedType::kNone;  ///< as in CollectiveCall
  int peer = 0;
};

/// As its record has it.
inline trace::Operation operation_of(const CollectiveCall& call) noexcept {
  return {trace::Operation::Kind::kCollective,
          call.collective,
          call.count,
          call.type,
          call.carried,
          call.op,
          call.root};
}
inline trace::Operation operation_of(const PointToPointCall& call) noexcept {
  trace::Operation operation;
  operation.kind = call.sends ? trace::Operation::Kind::kSend : trace::Operation::Kind::kReceive;
  operation.count = call.count;
  operation.type = call.type;
  operation.carried = call.carried;
  operation.root_or_peer = call.peer;
  return operation;
}

/// A barrier is an all-reduce of `nothing`, which must stay until it has run.
CollectiveCall barrier_call(float& nothing) noexcept;

/// "4 float32", as the caller counts them.
std::string describe_elements(std::size_t count, DataType type, CarriedType carried);

struct Validated {
  bool in_place = false;
};

/// The sizes of a rank's buffers in a call. They follow from the call's collective, root, count and
/// type, so that repeated calls need not compute them again.
struct Extent {
  std::size_t input_bytes = 0;
  std::size_t output_bytes = 0;
  std::size_t element_bytes = 1;  ///< a power of two
};

/// Checks all but the buffers: the root's range, sizes that overflow.
/// @throws Error kInvalidArgument naming the argument and its value
Extent extent_of(const CollectiveCall& call, int rank, int num_ranks);

/// Checks the buffers: null, misaligned, past the end of the address space, overlapping without
/// being in place.
/// @pre `extent` is extent_of(call, rank, ...)
/// @throws Error kInvalidArgument naming the argument and its value
Validated validate_buffers(const CollectiveCall& call, const Extent& extent, int rank);

/// An all-to-all whose blocks are to be replaced by those that come: no schedule does that without
/// memory of its own.
inline bool exchanges_in_place(const CollectiveCall& call) {
  return call.collective == Collective::kAllToAll && call.input == call.output &&
         call.input != nullptr;
}

/// Both: everything that this rank alone can know.
Validated validate(const CollectiveCall& call, int rank, int num_ranks);
void validate(const PointToPointCall& call, int num_ranks);

/// "all_reduce", "barrier"; and bytes as `count` counts them.
std::string_view operation_name(const CollectiveCall& call) noexcept;
std::size_t message_bytes(const CollectiveCall& call) noexcept;

/// What both ends of a link compare.
executor::CallTag tag_of(const CollectiveCall& call, std::uint32_t number) noexcept;
executor::CallTag tag_of(const PointToPointCall& call) noexcept;

}  // namespace ropewalk::comm
