// Translates CUDA errors to Error.
#pragma once

#include <cuda_runtime_api.h>

#include "core/error.h"
#include "core/library_thread.h"

namespace ropewalk::executor {

/// @throws Error kCuda with `tried` and CUDA's error string
inline void check_cuda(cudaError_t result, const char* tried) {
  if (result == cudaSuccess) return;
  // Clears the runtime's last error, which this call reports.
  cudaGetLastError();
  throw Error(Errc::kCuda, "{}: {}", tried, cudaGetErrorString(result));
}

/// Makes `device` current in this thread during its lifetime; the first one in a thread of the
/// library's own for longer (core/library_thread.h).
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ != device) check_cuda(cudaSetDevice(device), "cudaSetDevice");
    changed_ = !begins_on_its_first_gpu() && before_ != device;
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

/// During its lifetime this thread may allocate and copy although it captures a graph: what a call
/// allocates at its first use is then allocated at once, and is not captured.
class RelaxedCapture {
 public:
  RelaxedCapture() {
    check_cuda(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode");
  }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace ropewalk::executor
