// Device communicators: what kernels compiled against NVIDIA's device header need beside windows,
// to take part in a communicator themselves.
//
// The load/store (LSA) team is all ranks: they are on one host, and their GPUs access each other's
// memory. Each device communicator has a resource window of its own, zeroed memory of all ranks
// mapped side by side, in which lie the barriers and what else the program asked for:
//
//   LSA barriers, then the program's resources in the order of its list, each at a multiple of 128
//   bytes and of its alignment; a handle is the offset over 128
//
// What the kernels do with it is NVIDIA's code. Its barriers, of n barriers for r ranks, are words
// of 32 bits: n epochs and n inboxes for multicast memory around n epochs of this rank at [n, 2n),
// and an inbox for each rank's epochs at 3n + barrier * r + rank. Zeros are the state before the
// first use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "capi/nccl/requirements.h"
#include "capi/nccl/window_table.h"
#include "capi/nccl/windows.h"
#include "comm/communicator.h"
#include "core/error.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::nccl {

/// A word in pinned memory of the host, which kernels look at while they wait: not zero once the
/// communicator is broken or aborted. Their waits end then, with no promise about their data.
class AbortFlag {
 public:
  /// @throws Error kCuda
  explicit AbortFlag(transport::window::Gpu& gpu) : gpu_(gpu), word_(gpu.take_mark()) {
    word_.host->store(0);
  }
  ~AbortFlag() { gpu_.give_mark(word_); }
  AbortFlag(const AbortFlag&) = delete;
  AbortFlag& operator=(const AbortFlag&) = delete;
  /// Any thread.
  void raise() noexcept { word_.host->store(1); }
  [[nodiscard]] std::uint64_t address() const noexcept { return word_.device; }

 private:
  transport::window::Gpu& gpu_;
  transport::window::MarkWord word_;
};

/// Of one communicator. It may outlive the communicator, but creates nothing after that.
/// Threads: one at a time.
class DeviceComms {
 public:
  /// @param whose of the resource windows @param device as CUDA numbers them
  /// @throws Error kCuda
  DeviceComms(comm::Communicator& comm, int device, const Core& whose);
  ~DeviceComms();
  DeviceComms(const DeviceComms&) = delete;
  DeviceComms& operator=(const DeviceComms&) = delete;

  /// Collective over ranks that reach each other's memory. Writes the handles of `asked`, and
  /// ncclDevComm in the layout of its version to `out`, when all ranks have succeeded.
  /// @throws Error on all ranks, with the communicator whole: kInvalidUsage where they ask for
  /// different resources, or their memory cannot be mapped side by side; kCuda
  void create(const DevCommRequest& asked, void* out);
  /// For a rank that is to take no part: it refuses, and the others learn why.
  /// @throws Error the same, or of a rank before
  static void refuse(comm::Communicator& comm, const Error& why);
  /// Local. No kernel may use it any more. Does nothing for one without resources.
  /// @throws Error kInvalidArgument for one that is not of this communicator, or destroyed already
  void destroy(const void* dev_comm);

  /// A window was registered, or is about to be deregistered. Those that kernels cannot read are
  /// left out.
  /// @throws Error kCuda
  void window_added(ncclWindow_t handle, const Window& window);
  void window_removed(ncclWindow_t handle) { table_.remove(handle); }

  /// Memory of the GPU that resources hold.
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

 private:
  struct Resources {
    Resources(transport::window::Gpu& gpu, std::uint64_t bytes);
    const std::uint64_t bytes;
    transport::window::DeviceBuffer memory;
    std::shared_ptr<const FlatWindow> window;
  };
  // The windows' end comes first: it waits for kernels.
  using ByHandle = std::map<ncclWindow_t, std::unique_ptr<Resources>>;
  void enter(ncclWindow_t handle, const Resources& resources);
  void write(const DevCommRequest& asked, const Resources* resources, void* out) const;

  comm::Communicator& comm_;
  const Core& whose_;
  const int rank_;
  const int size_;
  transport::window::Gpu& gpu_;
  std::shared_ptr<AbortFlag> abort_;  // of the communicator's hook too
  WindowTable table_;
  ByHandle resources_;
};

}  // namespace ropewalk::nccl
