#include "link/cuda/ipc_sharing.h"

#include <cuda.h>

#include <cstring>
#include <map>
#include <utility>

#include "core/log.h"
#include "core/mutex.h"
#include "executor/cuda/cuda_error.h"
#include "link/cuda/device_window.h"

namespace ropewalk::link {
namespace {

// A function of the CUDA driver; null where the driver is too old to have it.
template <typename Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  executor::check_cuda(
      cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found),
      "cudaGetDriverEntryPointByVersion");
  return reinterpret_cast<Function>(function);
}

// Allocations that this process's ranks have opened, with a count of their users. CUDA returns the
// same address to all that open an allocation on one GPU, but only newer drivers count them.
class OpenedAllocations {
 public:
  using Key = std::pair<int, MemorySharing::Handle>;  // first: the GPU that reads

  static OpenedAllocations& of_process() {
    static auto* allocations = new OpenedAllocations;  // used by threads that outlive main()
    return *allocations;
  }

  std::byte* open(const Key& key) {
    const Lock lock(mutex_);
    auto found = opened_.find(key);
    if (found == opened_.end()) {
      cudaIpcMemHandle_t raw;
      static_assert(sizeof raw == sizeof key.second);
      std::memcpy(&raw, key.second.data(), sizeof raw);
      found = opened_.emplace(key, Opened{OpenedMemory(raw)}).first;
    }
    ++found->second.users;
    return found->second.memory.data();
  }
  void close(const Key& key) noexcept {
    const Lock lock(mutex_);
    const auto found = opened_.find(key);
    if (--found->second.users == 0) opened_.erase(found);
  }

 private:
  struct Opened {
    OpenedMemory memory;
    std::size_t users = 0;
  };
  Mutex mutex_;
  std::map<Key, Opened> opened_ RW_GUARDED_BY(mutex_);
};

struct Allocation {
  CUdeviceptr begin = 0;
  std::size_t bytes = 0;
};

Allocation allocation_of(const void* buffer) {
  using Ask = CUresult (*)(CUdeviceptr*, std::size_t*, CUdeviceptr);
  static const auto ask = driver_function<Ask>("cuMemGetAddressRange");
  Allocation found;
  if (ask == nullptr ||
      ask(&found.begin, &found.bytes, reinterpret_cast<CUdeviceptr>(buffer)) != CUDA_SUCCESS) {
    throw Error(Errc::kCuda, "cuMemGetAddressRange of {} failed", buffer);
  }
  return found;
}

// @return false for managed memory, which the driver migrates between GPU and host
bool check_address(const void* address, int device) {
  cudaPointerAttributes attributes{};
  executor::check_cuda(cudaPointerGetAttributes(&attributes, address), "cudaPointerGetAttributes");
  if (attributes.type == cudaMemoryTypeManaged) return false;
  if (attributes.type != cudaMemoryTypeDevice) {
    throw Error(Errc::kInvalidArgument, "buffer: {} is not in GPU memory", address);
  }
  if (attributes.device != device) {
    throw Error(Errc::kInvalidArgument, "buffer: {} is on GPU {}, the communicator works on GPU {}",
                address, attributes.device, device);
  }
  return true;
}

}  // namespace

bool from_cuda_malloc(const void* buffer) {
  using Ask = CUresult (*)(void*, CUpointer_attribute, CUdeviceptr);
  static const auto ask = driver_function<Ask>("cuPointerGetAttribute");
  int capable = 0;
  return ask != nullptr &&
         ask(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
             reinterpret_cast<CUdeviceptr>(buffer)) == CUDA_SUCCESS &&
         capable != 0;
}

std::optional<MemorySharing::Location> IpcSharing::location_of(const BufferRange& buffer) {
  const auto* first = static_cast<const std::byte*>(buffer.begin);
  const std::byte* last = first + (buffer.bytes - 1);
  if (!check_address(first, device_) || !check_address(last, device_)) return {};
  if (!from_cuda_malloc(first)) return {};
  const Allocation allocation = allocation_of(first);
  const std::uint64_t offset = reinterpret_cast<CUdeviceptr>(first) - allocation.begin;
  if (buffer.bytes > allocation.bytes - offset) {
    throw Error(Errc::kInvalidArgument, "buffer: {} bytes at {} leave their allocation of {} bytes",
                buffer.bytes, buffer.begin, allocation.bytes);
  }
  cudaIpcMemHandle_t raw;
  const cudaError_t shared = cudaIpcGetMemHandle(&raw, reinterpret_cast<void*>(allocation.begin));
  if (shared != cudaSuccess) {
    cudaGetLastError();
    log::info(log::kAlloc, "sharing the memory at {}: {}", buffer.begin,
              cudaGetErrorString(shared));
    return {};
  }
  Location location;
  std::memcpy(location.handle.data(), &raw, sizeof raw);
  location.offset = offset;
  return location;
}

std::shared_ptr<std::byte> IpcSharing::open(const Handle& handle) {
  OpenedAllocations& allocations = OpenedAllocations::of_process();
  const OpenedAllocations::Key key{device_, handle};
  return {allocations.open(key), [&allocations, key](std::byte*) { allocations.close(key); }};
}

}  // namespace ropewalk::link
