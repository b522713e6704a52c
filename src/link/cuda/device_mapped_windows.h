// Mapped windows (link/mapped_windows.h) as a GPU accesses them: kernels store into the windows of
// other hosts, and poll their own.
//
// A trial before use checks that a GPU's stores arrive: each GPU stores a pattern into every peer's
// window, and the peer's GPU checks it there. A pair that fails uses the network.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "link/cuda/device_window.h"
#include "link/mapped_windows.h"
#include "link/window_layout.h"

namespace ropewalk::link {

/// Threads: one at a time. Its device is current in every call.
class DeviceMappedWindows {
 public:
  /// Collective. @param layout of the two windows of a pair: its rank 0 is the lower rank
  DeviceMappedWindows(bootstrap::Bootstrap& bootstrap, MappedWindows::Drivers drivers,
                      std::vector<int> host_of_rank, const WindowLayout& layout,
                      cudaStream_t stream, Deadline deadline);

  [[nodiscard]] const MappedWindows& windows() const noexcept { return windows_; }
  [[nodiscard]] MappedWindows& windows() noexcept { return windows_; }
  [[nodiscard]] bool between(int peer) const noexcept { return windows_.between(peer); }
  /// @pre between(peer)
  [[nodiscard]] WindowSides sides(int peer) const;
  /// Where this rank writes its tags for a peer, and where it reads the peer's.
  [[nodiscard]] std::byte* their_board(int peer) const;
  [[nodiscard]] const std::byte* own_board(int peer) const;
  /// Bytes of a slot of a protocol's links.
  [[nodiscard]] std::size_t slot_bytes(executor::Protocol protocol) const noexcept {
    return layout_.shapes[static_cast<std::size_t>(protocol)].slot_bytes;
  }
  /// Bytes of host memory that other hosts write.
  [[nodiscard]] std::size_t bytes() const noexcept;

 private:
  struct End {
    std::unique_ptr<PinnedRange> own;
    std::unique_ptr<PinnedRange> theirs;
  };
  void pin(bootstrap::Bootstrap& bootstrap);
  void try_stores(bootstrap::Bootstrap& bootstrap, cudaStream_t stream);

  int rank_;
  WindowLayout layout_;
  MappedWindows windows_;
  std::vector<End> ends_;  // destroyed before the windows
};

}  // namespace ropewalk::link
