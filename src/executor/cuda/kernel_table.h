// Tables of the kernels that each file of instantiations holds.
#pragma once

#include <array>
#include <cstddef>

#include "core/types.h"
#include "executor/block/launch.h"

namespace ropewalk::executor {

/// By operator (sum, product, maximum, minimum), then protocol.
using KernelRow = std::array<std::array<const void*, kNumProtocols>, 4>;

template <DataType kType>
KernelRow kernels_of();
/// Kernels that only copy, by protocol.
std::array<const void*, kNumProtocols> copy_kernels();
/// Kernels of messages, by protocol.
const void* message_kernel();

}  // namespace ropewalk::executor
