// Another end's device memory, opened for one of this process's GPUs.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "transport/window/cuda_ipc/offers.h"
#include "transport/window/cuda_ipc/worker.h"
#include "transport/window/device/gpu.h"
#include "transport/window/device/ipc_memory.h"

namespace ropewalk::transport::window {

/// Opens at construction, closes when it goes. Both may take long; the second may wait for kernels.
class OpenedMemory {
 public:
  /// @param same_process the other end is in this process, where CUDA opens no handles of its own
  /// @throws Error kCuda
  OpenedMemory(Gpus& gpus, Gpu& gpu, const OfferedMemory& offer, bool same_process);
  ~OpenedMemory();
  OpenedMemory(const OpenedMemory&) = delete;
  OpenedMemory& operator=(const OpenedMemory&) = delete;

  [[nodiscard]] CuPointer data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// For CopyQueue::on_device().
  [[nodiscard]] CuContext context() const noexcept { return context_; }

 private:
  void open_in_process(Gpus& gpus, const OfferedMemory& offer);
  void map_descriptors(const OfferedMemory& offer);
  void unmap() noexcept;
  void close() noexcept;

  Gpu& gpu_;
  CuPointer data_ = 0;
  std::size_t bytes_;
  CuContext context_ = nullptr;
  IpcMemory by_handle_;
  CuPointer reserved_ = 0;
  std::size_t reserved_bytes_ = 0;
  std::vector<std::size_t> mapped_;  // bytes of the segments
};

/// An opening that a worker makes. Read `memory` and `why_not` when `finished`.
struct Opening {
  std::atomic<bool> finished = false;
  std::shared_ptr<const OpenedMemory> memory;  ///< closed by the worker, too
  std::string why_not;
};
std::shared_ptr<Opening> start_opening(Worker& worker, Gpus& gpus, Gpu& gpu,
                                       std::shared_ptr<const OfferedMemory> offer,
                                       bool same_process);

}  // namespace ropewalk::transport::window
