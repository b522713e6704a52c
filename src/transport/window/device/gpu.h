// This process's GPUs: primary contexts, streams for copies, and copies that wait.
//
// A GPU's primary context is the one that the CUDA runtime uses, and so every framework; no other
// is ever made. It is retained when memory of the GPU is first registered. GPUs are told apart by
// UUID: their numbers differ between processes (CUDA_VISIBLE_DEVICES).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/mutex.h"
#include "transport/window/device/cuda_api.h"

namespace ropewalk::transport::window {

/// A word in pinned host memory that a stream raises; and the page that it lies in.
struct MarkWord {
  std::atomic<std::uint64_t>* host = nullptr;
  CuPointer device = 0;
};

/// One GPU. Threads: any.
class Gpu {
 public:
  /// @throws Error kCuda
  Gpu(const CudaApi& cuda, int ordinal);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  [[nodiscard]] const CudaApi& cuda() const noexcept { return cuda_; }
  [[nodiscard]] int ordinal() const noexcept { return ordinal_; }
  [[nodiscard]] CuDevice device() const noexcept { return device_; }
  [[nodiscard]] const CuUuid& uuid() const noexcept { return uuid_; }
  [[nodiscard]] CuContext context() const noexcept { return context_; }
  /// "GPU 0 (NVIDIA H200)"
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// Whether a stream can write a mark by itself; else events report completion.
  [[nodiscard]] bool writes_marks() const noexcept { return writes_marks_; }

  /// A stream that waits for no other (kCuStreamNonBlocking), with the highest priority: kernels
  /// may be waiting for its copies, which must not queue behind a program's copies that wait for
  /// those kernels. `number` is taken modulo the streams' count.
  [[nodiscard]] CuStream stream(std::size_t number);
  /// Runs a copy of each kind, and a mark, on each stream, once. The first copy of a kind makes the
  /// driver allocate memory and channels, which may wait for kernels; later ones do not.
  void warm_up();
  /// The same for copies out of another GPU's memory that has just been opened, and that nobody
  /// writes. Waits as fetch().
  /// @param context of that memory, null when it is mapped for this GPU
  void touch(CuPointer source, CuContext context, std::size_t bytes);
  MarkWord take_mark();
  void give_mark(MarkWord mark);

  // These wait until they are done, 10 s at most.
  // @throws Error kCuda, kTimeout
  /// For all that was started on `stream`. @pre the GPU's context is current
  void wait(CuStream stream, const char* what) const;
  void fetch(void* host, CuPointer source, std::size_t bytes);
  void fill(CuPointer destination, const void* host, std::size_t bytes);
  /// Runs `start` with a stream, and waits for the started work.
  template <typename Start>
  void now(const char* what, Start start) {
    const CurrentContext current(cuda_, context_);
    const CuStream own = stream(kStreams);
    cuda_.check(start(own), what);
    wait(own, what);
  }

 private:
  static constexpr std::size_t kStreams = 8;
  static constexpr std::size_t kStagingBytes = 256 << 10;
  static constexpr std::size_t kScratchBytes = 4096;
  std::byte* staging() RW_REQUIRES(staging_mutex_);
  CuPointer scratch() RW_REQUIRES(staging_mutex_);

  const CudaApi& cuda_;
  const int ordinal_;
  CuDevice device_ = 0;
  CuUuid uuid_;
  std::string name_;
  CuContext context_ = nullptr;
  bool writes_marks_ = false;
  Mutex mutex_;
  // Those of the queues, and the last for what waits.
  std::array<CuStream, kStreams + 1> streams_ RW_GUARDED_BY(mutex_){};
  std::vector<void*> pages_ RW_GUARDED_BY(mutex_);
  std::vector<MarkWord> marks_ RW_GUARDED_BY(mutex_);  // that are free
  Mutex staging_mutex_;
  std::byte* staging_ RW_GUARDED_BY(staging_mutex_) = nullptr;
  CuPointer scratch_ RW_GUARDED_BY(staging_mutex_) = 0;
  bool warm_ RW_GUARDED_BY(staging_mutex_) = false;
};

/// All GPUs that this process sees, made when they are first used. Threads: any.
class Gpus {
 public:
  explicit Gpus(const CudaApi& cuda);
  [[nodiscard]] const CudaApi& cuda() const noexcept { return cuda_; }
  [[nodiscard]] int count() const noexcept { return static_cast<int>(gpus_.size()); }
  [[nodiscard]] const CuUuid& uuid(int ordinal) const {
    return uuids_.at(static_cast<std::size_t>(ordinal));
  }
  /// @throws Error kCuda
  Gpu& at(int ordinal);
  /// Null when this process does not see it.
  Gpu* find(const CuUuid& uuid);
  /// The ordinals of those that this process uses already: looking makes no context.
  [[nodiscard]] std::vector<int> in_use() const;
  /// Of which `stream` is; null where that cannot be told. @throws Error kCuda
  Gpu* of_stream(CuStream stream);

 private:
  const CudaApi& cuda_;
  std::vector<CuUuid> uuids_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Gpu>> gpus_;  // elements guarded by mutex_, their number is not
};

/// Pinned host memory, which copies of all GPUs may read and write.
class PinnedBuffer {
 public:
  /// @throws Error kCuda
  PinnedBuffer(Gpu& gpu, std::size_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  [[nodiscard]] std::byte* data() const noexcept { return data_; }

 private:
  Gpu& gpu_;
  std::byte* data_ = nullptr;
};

/// Device memory of one's own, from either allocator.
class DeviceBuffer {
 public:
  enum class From { kAllocator, kVirtualMemory };
  DeviceBuffer(Gpu& gpu, std::size_t bytes, From from);
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  [[nodiscard]] CuPointer data() const noexcept { return data_; }
  [[nodiscard]] void* pointer() const noexcept {
    return reinterpret_cast<void*>(data_);  // NOLINT(performance-no-int-to-ptr)
  }

 private:
  Gpu& gpu_;
  const From from_;
  CuPointer data_ = 0;
  std::size_t reserved_ = 0;
  bool mapped_ = false;
};

}  // namespace ropewalk::transport::window
