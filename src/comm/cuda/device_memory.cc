#include "comm/device_memory.h"

#include "comm/cuda/cuda_error.h"

namespace ropewalk::comm {

int num_devices() {
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count), "counting GPUs");
  return count;
}

void* take_device_memory(std::size_t bytes) {
  void* memory = nullptr;
  if (bytes == 0) return memory;
  const cudaError_t result = cudaMalloc(&memory, bytes);
  if (result != cudaSuccess) {
    cudaGetLastError();
    throw Error(Errc::kCuda, "taking {} bytes of device memory: {}", bytes,
                cudaGetErrorString(result));
  }
  return memory;
}

void give_device_memory(void* memory) { check_cuda(cudaFree(memory), "freeing device memory"); }

void read_in_order(void* to, const void* from, std::size_t bytes, int device, DeviceStream stream) {
  const CurrentDevice current(device);
  auto* on = static_cast<cudaStream_t>(stream);
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(on, &capturing), "asking a stream whether it captures");
  if (capturing != cudaStreamCaptureStatusNone) {
    throw Error(Errc::kInvalidUsage,
                "an operator with a scalar in device memory cannot be captured in a graph");
  }
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, on), "reading a scalar");
  check_cuda(cudaStreamSynchronize(on), "reading a scalar");
}

}  // namespace ropewalk::comm
