// MemorySharing by CUDA IPC: whole allocations of cudaMalloc, by handles.
//
// What CUDA's virtual memory functions gave (PyTorch's expandable segments, pools of
// cudaMallocAsync) has no such handle.
#pragma once

#include <memory>
#include <optional>

#include "link/registered_buffers.h"

namespace ropewalk::link {

/// Whether the memory at `buffer` came from cudaMalloc: what peer access covers, and what CUDA IPC
/// can share. Memory of the virtual memory functions and of pools asks for a permission of its own.
[[nodiscard]] bool from_cuda_malloc(const void* buffer);

/// For the rank whose GPU is `device`, which is current when it is used.
class IpcSharing final : public MemorySharing {
 public:
  explicit IpcSharing(int device) : device_(device) {}
  std::optional<Place> place_of(const BufferRange& buffer) override;
  std::shared_ptr<std::byte> open(const Handle& handle) override;

 private:
  int device_;
};

}  // namespace ropewalk::link
