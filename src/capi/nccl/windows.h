// Windows: buffers that the ranks of a communicator registered together.
//
// Functions that ask for a peer's address are given a window and no communicator, so windows belong
// to the process. The handle of a window whose memory is mapped side by side (FlatWindow) is the
// address of NVIDIA's structure in the GPU's memory, which kernels read. Any other window's handle
// is a number that is no valid address: a kernel that reads it faults instead of reading other
// data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capi/nccl/nccl_api.h"
#include "comm/flat_memory.h"
#include "link/buffer_range.h"
#include "message/window.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::nccl {

class OneSided;
struct Core;

/// The buffers of a window, mapped side by side, and what kernels read of them. Collectives may go
/// on reading the buffers when this is gone (FlatWindow::shared).
class FlatWindow {
 public:
  /// @throws Error kCuda
  FlatWindow(std::shared_ptr<const comm::FlatMemory> memory, int rank);
  [[nodiscard]] const comm::FlatMemory& memory() const noexcept { return *memory_; }
  /// Of this rank's buffer.
  [[nodiscard]] std::uint64_t own_bytes() const noexcept {
    return memory_->bytes()[static_cast<std::size_t>(rank_)];
  }
  /// For who reads the buffers, and keeps them mapped meanwhile.
  [[nodiscard]] link::MappedBuffers shared() const;
  [[nodiscard]] ncclWindow_t handle() const noexcept {
    return static_cast<ncclWindow_t>(layout_.pointer());
  }

 private:
  std::shared_ptr<const comm::FlatMemory> memory_;
  const int rank_;
  transport::window::DeviceBuffer layout_;
};

struct Window {
  const Core* core = nullptr;              ///< whose; never followed
  std::uint64_t number = 0;                ///< of the registration; 0 without one
  void* buffer = nullptr;                  ///< this rank's
  int rank = 0;                            ///< this rank
  bool all_load_store = false;             ///< all ranks reach each other's memory (ncclTeamLsa)
  std::vector<link::BufferRange> reached;  ///< by rank: where this rank reaches its buffer
  std::shared_ptr<const FlatWindow> flat;  ///< or null
  message::Window* puts = nullptr;         ///< what ncclPutSignal puts to; its communicator's
  std::string refusal;                     ///< why it is null
};

/// Collective: maps the buffers of `window` side by side, where all ranks can, for add_puts() and
/// add_window(). @throws Error which breaks the communicator
void add_flat(comm::Communicator& comm, int device, Window& window, std::size_t bytes);
/// Collective: lets ncclPutSignal put to `window`, or says in it why not: it serves collectives all
/// the same.
/// @throws Error which breaks the communicator
void add_puts(OneSided& one_sided, Window& window, std::size_t bytes);

/// Threads: any.
ncclWindow_t add_window(Window window);
/// @throws Error kInvalidArgument for a pointer that is not a window, or a deregistered one
std::shared_ptr<const Window> window_of(ncclWindow_t handle);
/// @throws Error kInvalidArgument also for one of another communicator
std::shared_ptr<const Window> own_window(const Core& core, ncclWindow_t handle);
/// Does nothing for a pointer that is not a window.
void remove_window(ncclWindow_t handle);
/// All of a communicator, in no order.
std::vector<std::pair<ncclWindow_t, std::shared_ptr<const Window>>> windows_of(const Core& core);
/// All of a communicator that is destroyed.
void remove_windows_of(const Core& core);

}  // namespace ropewalk::nccl
