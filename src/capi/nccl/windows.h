// Windows: buffers that the ranks of a communicator registered together.
//
// Functions that ask for a peer's address are given a window and no communicator, so windows belong
// to the process. A window's handle is a number that no address has: a kernel that takes it for
// NVIDIA's structure in device memory faults, instead of reading something else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "capi/nccl/nccl_api.h"
#include "link/buffer_range.h"
#include "message/window.h"

namespace ropewalk::nccl {

class OneSided;
struct Core;

struct Window {
  const Core* core = nullptr;              ///< whose; never followed
  std::uint64_t number = 0;                ///< of the registration
  void* buffer = nullptr;                  ///< this rank's
  int rank = 0;                            ///< this rank
  bool all_load_store = false;             ///< all ranks reach each other's memory (ncclTeamLsa)
  std::vector<link::BufferRange> reached;  ///< by rank: where this rank reaches its buffer
  message::Window* puts = nullptr;         ///< what ncclPutSignal puts to; its communicator's
  std::string refusal;                     ///< why it is null
};

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
/// All of a communicator that is destroyed.
void remove_windows_of(const Core& core);

}  // namespace ropewalk::nccl
