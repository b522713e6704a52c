// Where the files that hold the kernels' instantiations say what they have.
#pragma once

#include <array>
#include <cstddef>

#include "core/types.h"
#include "executor/block/launch.h"
#include "executor/cuda/kernel.h"

namespace ropewalk::executor {

/// By protocol.
using ProtocolKernels = std::array<CudaKernels, kNumProtocols>;
/// By operator (sum, product, maximum, minimum).
using KernelRow = std::array<ProtocolKernels, 4>;

template <DataType kType>
KernelRow kernels_of();
/// Kernels that only copy.
ProtocolKernels copy_kernels();
/// Kernels of messages.
CudaKernels message_kernels();

}  // namespace ropewalk::executor
