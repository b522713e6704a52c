// The walker's CUDA kernels: by protocol, element type and operator.
#pragma once

#include <array>
#include <cstdint>

#include "core/types.h"
#include "executor/block/launch.h"

namespace ropewalk::executor {

/// A kernel, as the CUDA runtime names it, for launches that are not LaunchLinks::noted(), and the
/// same for those that are.
using KernelPair = std::array<const void*, 2>;
/// The one for a launch.
constexpr const void* of(const KernelPair& pair, const LaunchLinks& links) noexcept {
  return pair[links.noted() ? 1 : 0];
}

/// What runs a call; the only parameter is a LaunchArgs, blocks are the channels. kAvg and
/// kPreMulSum run kSum's; what moves without combining runs `combines` == false's for all types.
KernelPair cuda_kernels(Protocol protocol, DataType type, RedOp op, bool combines);
/// The only parameter is a MessageArgs; each message has as many blocks as channels.
KernelPair cuda_message_kernels();

}  // namespace ropewalk::executor
