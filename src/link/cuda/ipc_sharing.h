// MemorySharing by CUDA IPC handles, which name whole allocations of cudaMalloc.
//
// Memory of CUDA's virtual memory functions (PyTorch's expandable segments) and of
// cudaMallocAsync's pools has no such handle.
#pragma once

#include <memory>
#include <optional>

#include "link/registered_buffers.h"

namespace ropewalk::link {

/// Whether the memory at `buffer` came from cudaMalloc: then peer access covers it and CUDA IPC can
/// share it. Virtual memory and memory of pools need access granted separately.
[[nodiscard]] bool from_cuda_malloc(const void* buffer);

/// For the rank whose GPU is `device`, which is current in every call.
class IpcSharing final : public MemorySharing {
 public:
  explicit IpcSharing(int device) : device_(device) {}
  std::optional<Location> location_of(const BufferRange& buffer) override;
  std::shared_ptr<std::byte> open(const Handle& handle) override;

 private:
  int device_;
};

}  // namespace ropewalk::link
