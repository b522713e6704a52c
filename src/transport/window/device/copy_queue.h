// A copy at a time on a GPU's copy engines, and whether it is done.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/mutex.h"
#include "core/pacer.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::transport::window {

/// A queue of one copy. Threads: one at a time.
///
/// What done() reports is visible to kernels that already run and that learn of it from this
/// process, which is all that NCCL's flush asks for: the copy is complete before the operation
/// after it in the stream begins, and that is the write of the mark, which makes what came before
/// visible to the whole system first unless told otherwise (CUDA Driver API, cuStreamWriteValue64
/// and CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER). Both the copy engine's writes and the loads of
/// NCCL's kernels, which are volatile, meet in the GPU's L2 cache. Unlike the writes of a NIC they
/// do not cross PCIe after their completion was reported over it. The same holds after an event.
///
/// The mark is read like any memory: asking the driver (cuEventQuery) takes its locks, and each
/// poll would delay threads that launch kernels.
class CopyQueue {
 public:
  /// `number` picks among the GPU's streams.
  /// @param limit how long a copy may take; 0 is for ever
  CopyQueue(Gpu& gpu, std::size_t number, std::chrono::nanoseconds limit);
  ~CopyQueue();
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  [[nodiscard]] Gpu& gpu() const noexcept { return gpu_; }

  /// Start a copy; host memory must be pinned. @throws Error kCuda
  void to_device(CuPointer destination, const void* source, std::size_t bytes);
  void to_host(void* destination, CuPointer source, std::size_t bytes);
  /// `source_context`: that of memory which another GPU's context of this process owns, else null.
  void on_device(CuPointer destination, CuPointer source, CuContext source_context,
                 std::size_t bytes);

  /// @throws Error kCuda when the copy failed, kTimeout
  [[nodiscard]] bool done();

 private:
  void mark(CuResult started, const char* what);
  [[nodiscard]] bool marked() const;
  void throw_if_late() const;

  Gpu& gpu_;
  const CuStream stream_;
  MarkWord mark_;
  CuEvent event_ = nullptr;
  std::uint64_t started_ = 0;
  std::uint64_t base_ = 0;
  const std::chrono::nanoseconds limit_;
  Pacer::Clock::time_point start_;
  Pacer looks_;  // at the stream itself
};

/// The copy queues of one end of a connection: each has one on every GPU that it came to. Threads:
/// any; a copy queue itself is used by one at a time.
class CopyQueues {
 public:
  /// @param first_stream picks among a GPU's streams, so that connections use all of them
  CopyQueues(std::size_t count, std::size_t first_stream, std::chrono::nanoseconds limit);
  [[nodiscard]] int count() const noexcept { return static_cast<int>(made_.size()); }
  /// @throws Error kCuda
  CopyQueue& on(int queue, Gpu& gpu);
  /// Makes all of that GPU.
  void prepare(Gpu& gpu);

 private:
  const std::size_t first_stream_;
  const std::chrono::nanoseconds limit_;
  Mutex mutex_;
  // Elements are guarded by the mutex, their number is not.
  std::vector<std::vector<std::unique_ptr<CopyQueue>>> made_;
};

}  // namespace ropewalk::transport::window
