// CUDA, as the connections of one driver share it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>

#include "transport/window/device/cuda_api.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::transport::window {

/// Why a driver takes no GPU memory where CudaApi::loads_lazily().
inline constexpr const char* kWhyNotLazily =
    "kernels are loaded at their first launch, which stops the copies that a collective waits for; "
    "start the program with CUDA_MODULE_LOADING=EAGER";

/// Threads: any.
struct DriverCuda {
  /// @throws Error kCuda in words, also where there is no GPU
  DriverCuda(const std::string& library, std::chrono::nanoseconds limit);
  CudaApi cuda;
  Gpus gpus;
  std::atomic<std::size_t> connections = 0;
  const std::chrono::nanoseconds copy_limit;  ///< how long a copy may take; 0 is for ever
};

}  // namespace ropewalk::transport::window
