// CUDA's errors as exceptions.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#define CHECK_CUDA(call)                                                               \
  do {                                                                                 \
    const cudaError_t result_ = (call);                                                \
    if (result_ != cudaSuccess) {                                                      \
      throw std::runtime_error(std::string(#call ": ") + cudaGetErrorString(result_)); \
    }                                                                                  \
  } while (false)
