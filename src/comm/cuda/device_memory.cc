#include "comm/device_memory.h"

#include <map>
#include <memory>
#include <utility>

#include "comm/runtime.h"
#include "core/mutex.h"
#include "executor/cuda/cuda_error.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::comm {
namespace {

using transport::window::DeviceBuffer;

struct Pages {
  Mutex mutex;
  std::map<void*, std::unique_ptr<DeviceBuffer>> buffers RW_GUARDED_BY(mutex);
};

Pages& pages() {
  static auto* all = new Pages;  // used by threads that outlive main()
  return *all;
}

void* take_pages(std::size_t bytes) {
  auto buffer = std::make_unique<DeviceBuffer>(Runtime::process().gpus().at(current_device()),
                                               bytes, DeviceBuffer::From::kVirtualMemory);
  void* memory = buffer->pointer();
  const Lock lock(pages().mutex);
  pages().buffers[memory] = std::move(buffer);
  return memory;
}

// @return false for memory of another kind
bool give_pages(void* memory) {
  const Lock lock(pages().mutex);
  const auto found = pages().buffers.find(memory);
  if (found == pages().buffers.end()) return false;
  // As cudaFree, which waits until the GPU is done with it.
  executor::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize (ncclMemFree)");
  pages().buffers.erase(found);
  return true;
}

}  // namespace

void* take_device_memory(std::size_t bytes) {
  void* memory = nullptr;
  if (bytes == 0) return memory;
  if (Runtime::process().config().text(Setting::kMemAlloc) == "pages") return take_pages(bytes);
  const cudaError_t result = cudaMalloc(&memory, bytes);
  if (result != cudaSuccess) {
    cudaGetLastError();
    throw Error(Errc::kCuda, "cudaMalloc of {} bytes of device memory: {}", bytes,
                cudaGetErrorString(result));
  }
  return memory;
}

void give_device_memory(void* memory) {
  if (give_pages(memory)) return;
  executor::check_cuda(cudaFree(memory), "cudaFree");
}

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
