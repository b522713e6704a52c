// Small pieces of device memory that kernels only read: schedules, ends of links.
//
// A piece without an owner is reused once the kernels that may read it have ended. No piece is
// freed before its communicator, since freeing waits for the GPU. So memory stays bounded also
// where an application keeps changing schedules. A CUDA graph owns the pieces that its kernels
// read.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "executor/cuda/owned.h"
#include "executor/cuda/stream_order.h"
#include "link/cuda/device_window.h"

namespace ropewalk::link {

class DeviceBlock {
 public:
  explicit DeviceBlock(std::size_t bytes) : memory_(bytes) {}
  [[nodiscard]] std::byte* data() const noexcept { return memory_.data(); }
  [[nodiscard]] std::size_t capacity() const noexcept { return memory_.bytes(); }
  void release() { memory_ = DeviceMemory(); }

 private:
  DeviceMemory memory_;
};

/// Threads: one at a time; any thread may release blocks. Its device is current in every call.
class DeviceBlocks {
 public:
  /// @param order  of the kernels that read the blocks; outlives this
  explicit DeviceBlocks(const executor::StreamOrder& order) : order_(order) {}
  ~DeviceBlocks();
  DeviceBlocks(const DeviceBlocks&) = delete;
  DeviceBlocks& operator=(const DeviceBlocks&) = delete;

  /// A copy of `bytes` in device memory, also while a stream of this thread captures.
  /// @throws Error kCuda
  std::shared_ptr<DeviceBlock> copy(std::span<const std::byte> bytes);
  template <typename T>
  std::shared_ptr<DeviceBlock> copy(const std::vector<T>& values) {
    return copy(std::as_bytes(std::span(values)));
  }

  /// Bytes of device memory of all blocks, in use or not.
  [[nodiscard]] std::size_t bytes() const noexcept;

 private:
  std::shared_ptr<DeviceBlock> unused(std::size_t bytes);

  const executor::StreamOrder& order_;
  const executor::Stream stream_;  // apart from the user's
  std::vector<std::shared_ptr<DeviceBlock>> blocks_;
};

/// Makes the graph an owner of the blocks, until it and all graphs made from it are destroyed.
/// @throws Error kCuda
void hold_in_graph(cudaGraph_t graph, std::vector<std::shared_ptr<DeviceBlock>> blocks);

}  // namespace ropewalk::link
