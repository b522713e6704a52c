// MemorySharing by CUDA IPC (transport/window/device/ipc_memory.h), whose handles name whole
// allocations of cudaMalloc.
//
// Memory of CUDA's virtual memory functions (PyTorch's expandable segments) and of
// cudaMallocAsync's pools has no such handle.
#pragma once

#include <memory>
#include <optional>

#include "link/registered_buffers.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::link {

/// For the rank that works on `gpu`, which is current in every call.
class IpcSharing final : public MemorySharing {
 public:
  explicit IpcSharing(const transport::window::Gpu& gpu) : gpu_(gpu) {}
  std::optional<Location> location_of(const BufferRange& buffer) override;
  std::shared_ptr<std::byte> open(int rank, const Handle& handle) override;

 private:
  const transport::window::Gpu& gpu_;
};

}  // namespace ropewalk::link
