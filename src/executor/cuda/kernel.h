// The walker's CUDA kernels: by protocol, element type and operator.
#pragma once

#include <array>
#include <cstddef>

#include "core/types.h"
#include "executor/block/launch.h"

namespace ropewalk::executor {

/// The kernels, as handles of the CUDA runtime, by KernelKind.
using CudaKernels = std::array<const void*, kNumKernelKinds>;
/// The one for a launch, of a LaunchArgs or MessageArgs.
template <typename Args>
constexpr const void* of(const CudaKernels& kernels, const Args& args) noexcept {
  return kernels[static_cast<std::size_t>(kind_of(args))];
}

/// The kernels that run a call. Their only parameter is a LaunchArgs, and block b runs channel b.
/// kAvg and kPreMulSum use the kernels of kSum; calls that combine nothing use those of `combines`
/// == false for all types.
CudaKernels cuda_kernels(Protocol protocol, DataType type, RedOp op, bool combines);
/// Their only parameter is a MessageArgs; each message has as many blocks as channels.
CudaKernels cuda_message_kernels();

}  // namespace ropewalk::executor
