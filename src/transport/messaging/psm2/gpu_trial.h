// Checks that libpsm2 moves messages to a GPU's memory and from it without changing them.
#pragma once

#include <string>

#include "transport/messaging/psm2/endpoint.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::transport::psm2 {

/// Moves patterns between host memory and memory of the GPU, from the endpoint to itself, of each
/// length of kPatternBytes, and compares what CUDA sees. (Not over two endpoints: libpsm2 would
/// open CUDA's handle of this process's own memory, which CUDA refuses.) In GPU memory of its own,
/// 2 MiB. Waits, at most some seconds; copies by CUDA on a stream of its own.
/// @pre the endpoint's mutex is not held
/// @return why it cannot be used; empty when all came right
std::string try_gpu(Endpoint& port, window::Gpu& gpu);

}  // namespace ropewalk::transport::psm2
