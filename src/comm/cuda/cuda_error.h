// CUDA's errors as Ropewalk's.
#pragma once

#include <cuda_runtime_api.h>

#include "core/error.h"

namespace ropewalk::comm {

/// @throws Error kCuda with `tried` and CUDA's own words
inline void check_cuda(cudaError_t result, const char* tried) {
  if (result == cudaSuccess) return;
  // The runtime keeps the last error for the next question; it has been answered here.
  cudaGetLastError();
  throw Error(Errc::kCuda, "{}: {}", tried, cudaGetErrorString(result));
}

/// Makes `device` current in this thread while it lives.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    check_cuda(cudaGetDevice(&before_), "asking for the current device");
    if (before_ != device) check_cuda(cudaSetDevice(device), "changing the current device");
    changed_ = before_ != device;
  }
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace ropewalk::comm
