// CUDA's errors as Ropewalk's, out of what nvcc compiles.
#pragma once

#include <cuda_runtime_api.h>

namespace ropewalk::message {

/// @throws Error kCuda with `tried` and CUDA's own words
void check_launch(cudaError_t result, const char* tried);

}  // namespace ropewalk::message
