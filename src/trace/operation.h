// An operation, as records describe it.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

#include "core/types.h"

namespace ropewalk::trace {

struct Operation {
  enum class Kind : std::uint8_t { kCollective, kSend, kReceive };

  Kind kind = Kind::kCollective;
  Collective collective = Collective::kAllReduce;  ///< not of messages
  std::size_t count = 0;
  DataType type = DataType::kFloat32;
  CarriedType carried = CarriedType::kNone;  ///< else `count` and `type` are of its carrier
  RedOp op = RedOp::kSum;                    ///< of collectives that reduce
  int root_or_peer = 0;
};

/// What a rank sends to one peer in an operation.
struct SentBytes {
  int peer = -1;
  std::size_t bytes = 0;
  friend auto operator<=>(const SentBytes&, const SentBytes&) = default;
};

}  // namespace ropewalk::trace
