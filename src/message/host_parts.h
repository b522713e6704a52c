// The parts of a window in the host's memory, as a GPU and its streams address them.
//
// The library's memory, and all counters, lie in one segment of shared memory, which is registered
// with CUDA as a whole. Memory that the user brought is used where the user has pinned it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/shared_memory.h"
#include "message/window_memory.h"
#include "transport/window/device/gpu.h"
#include "transport/window/device/segment_registration.h"

namespace ropewalk::message {

/// As one rank reaches them. Threads: one at a time.
class HostParts {
 public:
  /// Registers the segment, which takes as long as pinning its pages does, and may wait for
  /// kernels. `parts`, by rank, outlives this. @throws Error kCuda
  HostParts(transport::window::Gpu& gpu, const SharedMemory& segment, std::span<const Part> parts);

  [[nodiscard]] transport::window::Gpu& gpu() const noexcept { return gpu_; }
  /// Where the part's first byte is. Null of memory of the user's that is not pinned.
  /// @pre the part is mapped
  [[nodiscard]] std::byte* data(int rank);
  /// Where its counters are. @pre the part is mapped
  [[nodiscard]] SignalLine* signals(int rank) const;

 private:
  [[nodiscard]] bool in_segment(const void* address) const noexcept;
  [[nodiscard]] std::byte* moved(const void* address) const {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the GPU
    return reinterpret_cast<std::byte*>(registration_.on_device()) +
           (static_cast<const std::byte*>(address) - begin_);
  }

  transport::window::Gpu& gpu_;
  std::byte* begin_;
  std::size_t bytes_;
  std::span<const Part> parts_;
  transport::window::SegmentRegistration registration_;
  std::vector<std::byte*> of_users_;  // by rank, once known
};

}  // namespace ropewalk::message
