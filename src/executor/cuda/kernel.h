// The walker's CUDA kernels: one per protocol, element type and operator.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "executor/block/launch.h"

namespace ropewalk::executor {

/// The kernel that runs a call, as the CUDA runtime names it; its only parameter is a LaunchArgs,
/// its blocks are the channels. kAvg and kPreMulSum run kSum's; what moves without combining runs
/// `combines` == false's for all types.
const void* cuda_kernel(Protocol protocol, DataType type, RedOp op, bool combines);
/// Its only parameter is a MessageArgs; each message has as many blocks as channels.
const void* cuda_message_kernel();

}  // namespace ropewalk::executor
