// GPU memory as a dma-buf, which CUDA's driver makes.
#pragma once

#include "core/file_descriptor.h"
#include "transport/transport.h"
#include "transport/window/device/gpu_memory.h"

namespace ropewalk::transport::window {

/// A dma-buf descriptor of the pages that the memory lies in. It may end as soon as the memory was
/// registered with it.
class ExportedMemory {
 public:
  /// Does not wait for kernels.
  /// @throws Error kCuda, where the driver or the GPU cannot
  explicit ExportedMemory(const GpuMemory& memory);
  [[nodiscard]] DmaBuf buffer() const noexcept { return {descriptor_.get(), offset_}; }

 private:
  FileDescriptor descriptor_;
  std::uint64_t offset_ = 0;
};

}  // namespace ropewalk::transport::window
