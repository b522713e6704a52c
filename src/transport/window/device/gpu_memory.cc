#include "transport/window/device/gpu_memory.h"

#include <algorithm>
#include <optional>

#include "core/error.h"

namespace ropewalk::transport::window {

RetainedAllocation::RetainedAllocation(const CudaApi& cuda, CuPointer address) : cuda_(cuda) {
  void* pointer = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  held_ = cuda.has_virtual_memory() && cuda.retain_allocation(&handle_, pointer) == kCuSuccess;
}

RetainedAllocation::~RetainedAllocation() {
  if (held_) cuda_.release_allocation(handle_);
}

void GpuMemory::check_holds(const void* from, std::size_t count) const {
  const auto begin = reinterpret_cast<CuPointer>(from);
  if (begin < data || begin - data > bytes || count > bytes - (begin - data)) {
    throw Error(Errc::kInvalidArgument,
                "{} bytes at {} are not within the registration of {} bytes at {:#x}", count, from,
                bytes, data);
  }
}

GpuMemory find_gpu_memory(Gpus& gpus, void* data, std::size_t bytes) {
  GpuMemory memory;
  memory.data = reinterpret_cast<CuPointer>(data);
  memory.bytes = bytes;
  if (data == nullptr) {
    throw Error(Errc::kInvalidArgument, "registration of {} bytes at a null pointer", bytes);
  }
  if (gpus.count() == 0) throw Error(Errc::kInvalidArgument, "{}", "there is no GPU");
  const CudaApi& cuda = gpus.cuda();
  unsigned type = 0;
  int ordinal = -1;
  CuResult known = cuda.pointer_attribute(&type, kCuPointerMemoryType, memory.data);
  std::optional<CurrentContext> any;  // where a thread without a context may not ask
  if (known == kCuInvalidContext) {
    any.emplace(cuda, gpus.at(0).context());
    known = cuda.pointer_attribute(&type, kCuPointerMemoryType, memory.data);
  }
  if (known != kCuSuccess || type != kCuMemoryIsDevice ||
      cuda.pointer_attribute(&ordinal, kCuPointerOrdinal, memory.data) != kCuSuccess) {
    throw Error(Errc::kInvalidArgument, "registration of {} bytes at {}: this is not GPU memory",
                bytes, data);
  }
  Gpu& gpu = gpus.at(ordinal);
  memory.gpu = &gpu;
  CuContext owner = nullptr;  // none has virtual memory
  if (cuda.pointer_attribute(&owner, kCuPointerContext, memory.data) == kCuSuccess &&
      owner != nullptr && owner != gpu.context()) {
    throw Error(Errc::kInvalidArgument,
                "registration of {} bytes at {}: it belongs to a CUDA context which is not the "
                "primary one of {}",
                bytes, data, gpu.name());
  }
  const CurrentContext current(cuda, gpu.context());
  const CuPointer end = memory.data + std::max(bytes, std::size_t{1});
  for (CuPointer at = memory.data; at < end;) {
    Allocation found;
    const RetainedAllocation retained(cuda, at);
    // Only virtual memory has allocations side by side.
    if (cuda.address_range(&found.base, &found.bytes, at) != kCuSuccess || found.bytes == 0 ||
        (at != memory.data && !(memory.virtual_memory && retained.held()))) {
      throw Error(Errc::kInvalidArgument,
                  "registration of {} bytes at {}: only {} of them are allocated", bytes, data,
                  at - memory.data);
    }
    memory.virtual_memory = retained.held();
    at = found.base + found.bytes;
    memory.allocations.push_back(found);
  }
  return memory;
}

}  // namespace ropewalk::transport::window
