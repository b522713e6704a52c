// CUDA IPC: memory of a GPU that one process allocated and others of its host open. All that this
// library does with it goes through here.
//
// A handle names a whole allocation of cudaMalloc; memory of virtual-memory management and of pools
// has none. CUDA gives one address to all of a process that open a handle on one GPU, but only
// newer drivers count them: with older ones the first to close takes the memory from the others.
// So the users of a handle are counted here, for the whole process, whichever part of the library
// they belong to: CUDA opens it for the first of them and closes it after the last.
#pragma once

#include <string>

#include "transport/window/device/gpu.h"
#include "transport/window/device/gpu_memory.h"

namespace ropewalk::transport::window {

/// Whether `memory` came from cudaMalloc: then peer access covers it, and it has a handle.
[[nodiscard]] bool is_ipc_capable(const CudaApi& cuda, const void* memory) noexcept;

/// The allocation that `address`, in memory of `gpu`, lies in.
/// @throws Error kCuda: "cuMemGetAddressRange of 0x7f...: ..."
[[nodiscard]] Allocation allocation_of(const Gpu& gpu, CuPointer address);

/// The handle by which other processes open an allocation of `gpu`.
/// @param base the allocation's first byte
/// @throws Error kCuda where CUDA gives none: "cuIpcGetMemHandle: ..."
[[nodiscard]] CuIpcHandle ipc_handle_of(const Gpu& gpu, CuPointer base);

/// One use of another process's allocation; not of one's own process, whose handles CUDA refuses.
///
/// Both opening and closing may take long, and closing may wait for the GPU's kernels; those who
/// open the same handle on the same GPU meanwhile wait too, all others do not.
///
/// Threads: one at a time per object; those of other users may be made and destroyed meanwhile.
/// Lifetime: within that of `gpu`; other users of the handle may have that GPU from other Gpus.
class IpcMemory {
 public:
  /// Nothing.
  IpcMemory() = default;
  /// @param whose the owner in errors and warnings, such as "rank 3"
  /// @throws Error kCuda, with nothing open that was not before: "cuIpcOpenMemHandle (memory of
  /// rank 3, on GPU 0 (NVIDIA H200)): ..."
  IpcMemory(const Gpu& gpu, const CuIpcHandle& handle, std::string whose);
  ~IpcMemory();
  IpcMemory(IpcMemory&& other) noexcept;
  IpcMemory& operator=(IpcMemory&& other) noexcept;
  IpcMemory(const IpcMemory&) = delete;
  IpcMemory& operator=(const IpcMemory&) = delete;

  /// The allocation's first byte, for kernels and copies of `gpu`; 0 for nothing.
  [[nodiscard]] CuPointer base() const noexcept { return base_; }

 private:
  void close() noexcept;

  const Gpu* gpu_ = nullptr;
  CuIpcHandle handle_;
  std::string whose_;
  CuPointer base_ = 0;
};

}  // namespace ropewalk::transport::window
