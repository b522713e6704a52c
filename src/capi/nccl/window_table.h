// The windows of a communicator as kernels find them by an address (ncclFindWindow).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "capi/nccl/device_comm_layout.h"
#include "capi/nccl/nccl_api.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::nccl {

/// Blocks of WindowTableBlock in a GPU's memory, each with a copy here. A window takes the first
/// free slot, and blocks stay until the end: kernels hold the address of the first one.
///
/// Threads: one at a time. Kernels may read meanwhile: they find the state before or after a
/// change.
class WindowTable {
 public:
  /// @throws Error kCuda
  explicit WindowTable(transport::window::Gpu& gpu);

  /// `base` as this rank's program addresses the buffer. @throws Error kCuda
  void add(std::uint64_t base, std::uint64_t bytes, ncclWindow_t window);
  /// Does nothing for a window that is not there. @throws Error kCuda
  void remove(ncclWindow_t window);

  /// Of the first block.
  [[nodiscard]] std::uint64_t address() const { return blocks_.front()->memory.data(); }

 private:
  using Entry = WindowTableBlock::Entry;
  struct Block {
    explicit Block(transport::window::Gpu& gpu);
    WindowTableBlock copy{};
    transport::window::DeviceBuffer memory;
  };
  struct Slot {
    Block* block = nullptr;
    std::size_t index = 0;
  };
  Slot find(const void* window);
  void put(Slot slot, const Entry& entry);

  transport::window::Gpu& gpu_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace ropewalk::nccl
