#include "link/cuda/device_window.h"

#include <utility>

#include "executor/cuda/cuda_error.h"

namespace ropewalk::link {
DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) {
  void* memory = nullptr;
  const cudaError_t result = cudaMalloc(&memory, bytes);
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t free = 0;
    std::size_t total = 0;
    cudaMemGetInfo(&free, &total);
    throw Error(Errc::kCuda, "cudaMalloc of {} bytes: out of memory, {} bytes are free of {}",
                bytes, free, total);
  }
  executor::check_cuda(result, "cudaMalloc");
  data_ = static_cast<std::byte*>(memory);
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) cudaFree(data_);
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedRange::PinnedRange(std::byte* data, std::size_t bytes) : data_(data) {
  constexpr unsigned kFlags = cudaHostRegisterPortable | cudaHostRegisterMapped;
  cudaError_t pinned = cudaHostRegister(data, bytes, kFlags);
  if (pinned == cudaErrorInvalidValue || pinned == cudaErrorNotSupported) {
    // What a driver mapped of a device, such as a window of a PCIe bridge.
    cudaGetLastError();
    pinned = cudaHostRegister(data, bytes, kFlags | cudaHostRegisterIoMemory);
  }
  if (pinned != cudaSuccess) {
    cudaGetLastError();
    throw Error(Errc::kCuda, "cudaHostRegister of {} bytes: {}", bytes, cudaGetErrorString(pinned));
  }
  void* mapped = nullptr;
  const cudaError_t seen = cudaHostGetDevicePointer(&mapped, data, 0);
  if (seen != cudaSuccess) {
    cudaHostUnregister(data);
    executor::check_cuda(seen, "cudaHostGetDevicePointer");
  }
  on_device_ = static_cast<std::byte*>(mapped);
}

PinnedRange::~PinnedRange() { cudaHostUnregister(data_); }

PinnedMemory::PinnedMemory(SharedMemory memory)
    : memory_(std::move(memory)), pinned_(memory_.data(), memory_.size()) {}

}  // namespace ropewalk::link
