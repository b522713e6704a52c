// Scaling in a reducing call: a factor for the inputs, a divisor for the result.
#pragma once

#include <cstdint>

#include "comm/collective_call.h"

namespace ropewalk::comm {

struct Scaling {
  bool scaled = false;        ///< multiply this rank's input by `scalar`
  std::uint64_t scalar = 0;   ///< one element, in the low bytes
  std::uint32_t divisor = 1;  ///< of finished values
};

/// kPreMulSum scales by the call's scalar. kAvg multiplies each input of a floating type by
/// 1 / num_ranks (as NCCL) and divides integers at the end.
Scaling scaling_of(const CollectiveCall& call, int num_ranks);

}  // namespace ropewalk::comm
