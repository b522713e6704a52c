// Where the files that hold the kernels' instantiations say what they have.
#pragma once

#include <array>
#include <cstddef>

#include "core/types.h"
#include "executor/block/links.h"

namespace ropewalk::executor {

inline constexpr unsigned kMaxThreads = 512;  ///< of a block, that move data
/// What a block has beside them for protocol simple: makers and tellers (block/staged_walk.h).
inline constexpr unsigned kControlThreads = 64;
constexpr unsigned launch_threads(Protocol protocol, unsigned threads) {
  return threads + (protocol == Protocol::kSimple ? kControlThreads : 0);
}

/// By operator (sum, product, maximum, minimum), then protocol.
using KernelRow = std::array<std::array<const void*, kNumProtocols>, 4>;

template <DataType kType>
KernelRow kernels_of();
/// What copies, by protocol.
std::array<const void*, kNumProtocols> copy_kernels();
/// What carries messages.
const void* message_kernel();

}  // namespace ropewalk::executor
