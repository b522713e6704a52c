// Owners of streams, events and pinned memory. A stream or event belongs to the device that is
// current when it is created.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "executor/cuda/cuda_error.h"

namespace ropewalk::executor {

class Stream {
 public:
  Stream() {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
               "cudaStreamCreateWithFlags");
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  /// @param flags as cudaEventCreateWithFlags: cudaEventDisableTiming for an event that only orders
  /// work
  explicit Event(unsigned flags = cudaEventDefault) {
    check_cuda(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreateWithFlags");
  }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  [[nodiscard]] cudaEvent_t get() const noexcept { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Pinned host memory, at the same address on all GPUs.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(std::size_t bytes) {
    check_cuda(cudaHostAlloc(&data_, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
               "cudaHostAlloc");
  }
  ~PinnedBuffer() { cudaFreeHost(data_); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  [[nodiscard]] void* data() const noexcept { return data_; }

 private:
  void* data_ = nullptr;
};

}  // namespace ropewalk::executor
