#include "comm/scaling.h"

#include <cstring>

#include "core/small_float.h"

namespace ropewalk::comm {
namespace {

// 1 / num_ranks as one element of a floating type, which kAvg multiplies each input by (as NCCL).
std::uint64_t reciprocal(DataType type, int num_ranks) {
  const double value = 1.0 / num_ranks;
  const auto single = static_cast<float>(value);
  std::uint64_t bits = 0;
  switch (type) {
    case DataType::kFloat64: std::memcpy(&bits, &value, sizeof value); break;
    case DataType::kFloat32: std::memcpy(&bits, &single, sizeof single); break;
    default: bits = encode_small_float(type, single); break;
  }
  return bits;
}

}  // namespace

Scaling scaling_of(const CollectiveCall& call, int num_ranks) {
  Scaling scaling;
  if (!reduces(call.collective)) return scaling;
  if (call.op == RedOp::kPreMulSum) {
    scaling.scaled = true;
    scaling.scalar = call.scalar;
  } else if (call.op == RedOp::kAvg && num_ranks > 1) {
    if (is_float(call.type)) {
      scaling.scaled = true;
      scaling.scalar = reciprocal(call.type, num_ranks);
    } else {
      scaling.divisor = static_cast<std::uint32_t>(num_ranks);
    }
  }
  return scaling;
}

}  // namespace ropewalk::comm
