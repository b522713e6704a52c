// GPU memory behind segments: CUDA's driver library, found at run time, makes the transfers.
//
// The owner of a segment exports its memory when it is attached, and other processes open it: by a
// CUDA memory handle, or for virtual-memory management by a descriptor. To open memory may wait for
// the GPU's kernels, which may be waiting for a transfer from there. So each process which uses GPU
// memory opens that of all others when it becomes available, in a thread of its own, and
// SCISetSegmentAvailable waits for that, not for long.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "fabric.h"
#include "transport/window/cuda_ipc/device_memory.h"
#include "transport/window/cuda_ipc/opened_memory.h"
#include "transport/window/cuda_ipc/worker.h"
#include "transport/window/device/driver_cuda.h"

namespace software_sisci {

/// GPU memory that this process reaches. Threads: any.
class GpuView {
 public:
  /// @param kept lives as long as this
  GpuView(ropewalk::transport::window::Gpu& gpu, std::uint64_t data,
          std::shared_ptr<const void> kept)
      : gpu_(gpu), data_(data), kept_(std::move(kept)) {}
  /// Copies, and waits for that. @return false when CUDA cannot
  bool read(std::size_t offset, std::byte* host, std::size_t bytes) const;
  bool write(std::size_t offset, const std::byte* host, std::size_t bytes) const;

 private:
  ropewalk::transport::window::Gpu& gpu_;
  std::uint64_t data_;
  std::shared_ptr<const void> kept_;
};

/// CUDA in this process. Threads: any.
class GpuMemory {
 public:
  /// Opens the library. @throws Failure where there is no GPU
  GpuMemory(const std::string& library, Fabric& fabric);
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  /// Makes memory of this process ready for others. @param share what they need to know
  /// @throws Failure when it is no GPU memory, or several allocations
  std::shared_ptr<const GpuView> attach(void* address, std::size_t bytes, GpuShare& share);
  /// The memory of a segment. @throws Failure when it cannot be opened
  std::shared_ptr<const GpuView> connect(std::size_t segment, std::uint64_t generation, pid_t owner,
                                         const GpuShare& share);
  /// Opens memory that other processes attached, and closes memory that is detached.
  void survey();
  /// Waits until all others have opened that segment, and this process theirs; 2 s at most.
  void settle(const SegmentEntry& segment);

 private:
  using Key = std::pair<std::size_t, std::uint64_t>;  // segment, generation
  std::shared_ptr<ropewalk::transport::window::Opening> open(Key key, pid_t owner,
                                                             const GpuShare& share);
  [[nodiscard]] bool all_open();

  Fabric& fabric_;
  ropewalk::transport::window::DriverCuda cuda_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<ropewalk::transport::window::Opening>> openings_;
  ropewalk::transport::window::Worker worker_;  // ends first
};

}  // namespace software_sisci
