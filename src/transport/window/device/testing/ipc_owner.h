// A process that shares memory of its first GPU by CUDA IPC, for tests of those who open it.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <vector>

#include "transport/window/device/gpu.h"
#include "transport/window/device/ipc_memory.h"
#include "transport/window/device/testing/on_device.h"
#include "transport/window/device/testing/stand_in.h"

namespace ropewalk::transport::window::testing {

/// Lives until it is destroyed, and has a number of allocations until then. Each is filled with
/// numbered(kBytes, its index).
class IpcOwner {
 public:
  static constexpr std::size_t kBytes = 100'000;

  explicit IpcOwner(std::size_t allocations) : handles_(allocations) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
    child_ = fork();
    if (child_ == 0) {
      share(ends[1]);
      _exit(1);
    }
    ::close(ends[1]);
    for (CuIpcHandle& handle : handles_) {
      if (read(ends[0], &handle, sizeof handle) != sizeof handle) std::abort();
    }
    ::close(ends[0]);
  }
  ~IpcOwner() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  IpcOwner(const IpcOwner&) = delete;
  IpcOwner& operator=(const IpcOwner&) = delete;

  [[nodiscard]] const CuIpcHandle& handle(std::size_t allocation = 0) const {
    return handles_.at(allocation);
  }
  /// Of nothing: CUDA refuses it.
  static CuIpcHandle wrong_handle() { return {}; }

 private:
  void share(int to) const {
    try {
      StandIn().restart();
      TestGpus gpus(RW_STAND_IN_CUDA);
      Gpu& gpu = gpus.gpus.at(0);
      std::vector<std::unique_ptr<DeviceBuffer>> buffers;
      for (std::size_t i = 0; i < handles_.size(); ++i) {
        buffers.push_back(
            std::make_unique<DeviceBuffer>(gpu, kBytes, DeviceBuffer::From::kAllocator));
        gpu.fill(buffers.back()->data(), numbered(kBytes, i).data(), kBytes);
        const CuIpcHandle handle =
            ipc_handle_of(gpu, allocation_of(gpu, buffers.back()->data() + 1000).base);
        if (write(to, &handle, sizeof handle) != sizeof handle) return;
      }
      for (;;) pause();
    } catch (const std::exception& error) {
      fprintf(stderr, "owner of shared memory: %s\n", error.what());
    }
  }

  std::vector<CuIpcHandle> handles_;
  pid_t child_ = -1;
};

}  // namespace ropewalk::transport::window::testing
