#include "link/cuda/device_window.h"

#include <utility>

#include "executor/block/launch.h"
#include "executor/cuda/cuda_error.h"

namespace ropewalk::link {
namespace {

constexpr std::size_t kAlign = 128;
// A counter each sector: two peers' writes do not meet in one.
constexpr std::size_t kCounterBytes = 32;
constexpr std::size_t kBoardBytes = executor::kBoardTags * sizeof(executor::CallTag);

std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

std::size_t WindowLayout::stride(executor::Protocol protocol) const noexcept {
  return aligned(executor::link_bytes(protocol, shapes[static_cast<std::size_t>(protocol)]));
}

std::size_t WindowLayout::counters_bytes() const noexcept {
  return aligned(std::size_t{executor::kNumProtocols} * static_cast<std::size_t>(channels * ranks) *
                 kCounterBytes);
}

std::size_t WindowLayout::board_offset(int rank) const noexcept {
  return counters_bytes() + static_cast<std::size_t>(rank) * kBoardBytes;
}

std::size_t WindowLayout::boards_bytes() const noexcept {
  return aligned(static_cast<std::size_t>(all_ranks) * kBoardBytes);
}

std::size_t WindowLayout::link_offset(executor::Protocol protocol, int channel, int rank,
                                      int source) const noexcept {
  const int others = ranks - 1;
  const int place = channel * others + (source < rank ? source : source - 1);
  std::size_t offset = counters_bytes() + boards_bytes();
  for (int p = 0; p < static_cast<int>(protocol); ++p) {
    offset +=
        stride(static_cast<executor::Protocol>(p)) * static_cast<std::size_t>(channels * others);
  }
  return offset + stride(protocol) * static_cast<std::size_t>(place);
}

std::size_t WindowLayout::counter_offset(executor::Protocol protocol, int channel,
                                         int destination) const noexcept {
  const int place = (static_cast<int>(protocol) * channels + channel) * ranks + destination;
  return static_cast<std::size_t>(place) * kCounterBytes;
}

std::size_t WindowLayout::bytes() const noexcept {
  std::size_t total = counters_bytes() + boards_bytes();
  for (int p = 0; p < executor::kNumProtocols; ++p) {
    total += stride(static_cast<executor::Protocol>(p)) *
             static_cast<std::size_t>(channels * (ranks - 1));
  }
  return total;
}

DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) {
  void* memory = nullptr;
  const cudaError_t result = cudaMalloc(&memory, bytes);
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t free = 0;
    std::size_t total = 0;
    cudaMemGetInfo(&free, &total);
    throw Error(Errc::kCuda, "taking {} bytes of device memory: {} bytes are free of {}", bytes,
                free, total);
  }
  executor::check_cuda(result, "taking device memory");
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

PinnedMemory::PinnedMemory(SharedMemory memory) : memory_(std::move(memory)) {
  const cudaError_t pinned = cudaHostRegister(memory_.data(), memory_.size(),
                                              cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (pinned != cudaSuccess) {
    cudaGetLastError();
    throw Error(Errc::kCuda, "pinning {} bytes of the host's memory: {}", memory_.size(),
                cudaGetErrorString(pinned));
  }
  void* mapped = nullptr;
  const cudaError_t seen = cudaHostGetDevicePointer(&mapped, memory_.data(), 0);
  if (seen != cudaSuccess) {
    cudaHostUnregister(memory_.data());
    executor::check_cuda(seen, "mapping pinned memory");
  }
  on_device_ = static_cast<std::byte*>(mapped);
}

PinnedMemory::~PinnedMemory() { cudaHostUnregister(memory_.data()); }

OpenedMemory::OpenedMemory(const cudaIpcMemHandle_t& handle) {
  void* memory = nullptr;
  executor::check_cuda(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess),
                       "opening another process's device memory");
  data_ = static_cast<std::byte*>(memory);
}

OpenedMemory::~OpenedMemory() {
  if (data_ != nullptr) cudaIpcCloseMemHandle(data_);
}

OpenedMemory::OpenedMemory(OpenedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)) {}

OpenedMemory& OpenedMemory::operator=(OpenedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  return *this;
}

}  // namespace ropewalk::link
