#include "comm/device_memory.h"

#include "executor/cuda/cuda_error.h"

namespace ropewalk::comm {

void* take_device_memory(std::size_t bytes) {
  void* memory = nullptr;
  if (bytes == 0) return memory;
  const cudaError_t result = cudaMalloc(&memory, bytes);
  if (result != cudaSuccess) {
    cudaGetLastError();
    throw Error(Errc::kCuda, "cudaMalloc of {} bytes of device memory: {}", bytes,
                cudaGetErrorString(result));
  }
  return memory;
}

void give_device_memory(void* memory) { executor::check_cuda(cudaFree(memory), "cudaFree"); }

void read_in_order(void* to, const void* from, std::size_t bytes, int device, DeviceStream stream) {
  const executor::CurrentDevice current(device);
  auto* on = static_cast<cudaStream_t>(stream);
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  executor::check_cuda(cudaStreamIsCapturing(on, &capturing), "cudaStreamIsCapturing");
  if (capturing != cudaStreamCaptureStatusNone) {
    throw Error(Errc::kInvalidUsage,
                "an operator with a scalar in device memory cannot be captured in a graph");
  }
  executor::check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, on),
                       "cudaMemcpyAsync (a scalar)");
  executor::check_cuda(cudaStreamSynchronize(on), "cudaStreamSynchronize (a scalar)");
}

}  // namespace ropewalk::comm
