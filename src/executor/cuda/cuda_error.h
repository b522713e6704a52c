// CUDA's errors as Ropewalk's.
#pragma once

#include <cuda_runtime_api.h>

#include "core/error.h"

namespace ropewalk::executor {

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

/// Lets this thread take memory and copy while it captures a graph, while it lives: what a call
/// needs when it is made for the first time is made at once, and is no part of the graph.
class RelaxedCapture {
 public:
  RelaxedCapture() {
    check_cuda(cudaThreadExchangeStreamCaptureMode(&mode_), "changing the capture mode");
  }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace ropewalk::executor
