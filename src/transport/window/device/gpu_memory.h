// GPU memory that a program hands over: whose it is, and which allocations it lies in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/window/device/gpu.h"

namespace ropewalk::transport::window {

/// A whole allocation.
struct Allocation {
  CuPointer base = 0;
  std::size_t bytes = 0;
};

/// A range of GPU memory.
struct GpuMemory {
  Gpu* gpu = nullptr;
  CuPointer data = 0;
  std::size_t bytes = 0;
  bool virtual_memory = false;          ///< of virtual-memory management, else of the allocator
  std::vector<Allocation> allocations;  ///< that it lies in, ascending, without gaps

  /// As DeviceCopies has locations: memory of one GPU and kind.
  [[nodiscard]] std::uint32_t location() const noexcept {
    return 1 + 2 * static_cast<std::uint32_t>(gpu->ordinal()) + (virtual_memory ? 1 : 0);
  }
  /// @throws Error kInvalidArgument when not all of `bytes` at `from` is in it
  void check_holds(const void* from, std::size_t bytes) const;
};
/// The GPU of a location, and whether its memory is of virtual-memory management.
constexpr int ordinal_of(std::uint32_t location) noexcept {
  return static_cast<int>((location - 1) / 2);
}
constexpr bool is_virtual(std::uint32_t location) noexcept { return (location - 1) % 2 == 1; }

/// Finds out what memory that is.
/// @throws Error kInvalidArgument when it is no GPU memory, not of a primary context, or not all of
///         it is there
GpuMemory find_gpu_memory(Gpus& gpus, void* data, std::size_t bytes);

/// The handle of an allocation of virtual-memory management, while this lives.
class RetainedAllocation {
 public:
  RetainedAllocation(const CudaApi& cuda, CuPointer address);
  ~RetainedAllocation();
  RetainedAllocation(const RetainedAllocation&) = delete;
  RetainedAllocation& operator=(const RetainedAllocation&) = delete;
  /// False for memory of another kind.
  [[nodiscard]] bool held() const noexcept { return held_; }
  [[nodiscard]] CuAllocation handle() const noexcept { return handle_; }

 private:
  const CudaApi& cuda_;
  CuAllocation handle_ = 0;
  bool held_ = false;
};

}  // namespace ropewalk::transport::window
