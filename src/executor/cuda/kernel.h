// The walker's CUDA kernels: by protocol, element type and operator.
#pragma once

#include <array>
#include <cstdint>

#include "core/types.h"
#include "executor/block/launch.h"

namespace ropewalk::executor {

/// The kernels, as handles of the CUDA runtime, for launches that are not LaunchLinks::noted(), and
/// for those that are.
using KernelPair = std::array<const void*, 2>;
/// The one for a launch.
constexpr const void* of(const KernelPair& pair, const LaunchLinks& links) noexcept {
  return pair[links.noted() ? 1 : 0];
}

/// The kernels that run a call. Their only parameter is a LaunchArgs, and block b runs channel b.
/// kAvg and kPreMulSum use the kernels of kSum; calls that combine nothing use those of `combines`
/// == false for all types.
KernelPair cuda_kernels(Protocol protocol, DataType type, RedOp op, bool combines);
/// Their only parameter is a MessageArgs; each message has as many blocks as channels.
KernelPair cuda_message_kernels();

}  // namespace ropewalk::executor
