// The walker's CUDA kernels: one per protocol, element type and operator.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "executor/block/launch.h"

namespace ropewalk::executor {

/// The kernel that runs a call, as a handle of the CUDA runtime. Its only parameter is a
/// LaunchArgs, and block b runs channel b. kAvg and kPreMulSum use the kernel of kSum; calls that
/// combine nothing use the one of `combines` == false for all types.
const void* cuda_kernel(Protocol protocol, DataType type, RedOp op, bool combines);
/// Its only parameter is a MessageArgs; each message has as many blocks as channels.
const void* cuda_message_kernel();

}  // namespace ropewalk::executor
