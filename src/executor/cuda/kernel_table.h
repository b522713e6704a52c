// Where the files that hold the kernels' instantiations say what they have.
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
/// What copies, by protocol.
std::array<const void*, kNumProtocols> copy_kernels();
/// What carries messages.
const void* message_kernel();

}  // namespace ropewalk::executor
