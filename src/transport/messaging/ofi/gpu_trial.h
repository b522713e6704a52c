// Checks that a provider moves messages to a GPU's memory and from it without changing them.
#pragma once

#include <string>

#include "transport/messaging/ofi/endpoint.h"

namespace ropewalk::transport::ofi {

/// Moves patterns between host memory and memory of the GPU that is registered by `means`, from the
/// endpoint to itself, by each operation that messages take, and compares what CUDA sees. In GPU
/// memory of its own, 2 MiB.
/// Waits, at most some seconds; copies by CUDA on a stream of its own.
/// @return why it cannot be used; empty when all came right
std::string try_gpu(Endpoint& endpoint, window::Gpu& gpu, Means means) RW_REQUIRES(endpoint.mutex);

}  // namespace ropewalk::transport::ofi
