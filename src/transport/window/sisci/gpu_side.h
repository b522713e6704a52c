// The part of one end of a connection that stages GPU memory: through pinned memory of the host,
// into the other end's window and out of this end's.
//
//   GPU -> pinned memory -> the other end's window (as host memory goes there: DMA, or the CPU)
//   this end's window -> pinned memory -> GPU
//
// Windows are the library's memory, which CUDA cannot be relied on to pin.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "core/mutex.h"
#include "transport/window/device/copy_queue.h"
#include "transport/window/device/driver_cuda.h"
#include "transport/window/device/gpu.h"
#include "transport/window/driver.h"
#include "transport/window/sisci/gpu_trials.h"

namespace ropewalk::transport::window::sisci {

class GpuSide final : public DeviceCopies {
 public:
  static constexpr int kQueues = 4;

  /// @param cuda null where this end takes no GPU memory; the other end may
  /// @param first_queue of the kQueues of `path` that are for what is staged
  GpuSide(DriverCuda* cuda, GpuTrials& trials, Path& path, int first_queue);

  void prepare(const Registration& registration, bool receives) noexcept override;
  [[nodiscard]] int queues() const override { return cuda_ != nullptr ? kQueues : 0; }
  [[nodiscard]] std::uint32_t location(const Registration& registration, const void* data,
                                       std::size_t bytes) const override;
  void start_write(int queue, std::size_t offset, const void* source,
                   const Registration& registration, std::size_t bytes) override;
  void start_read(int queue, void* destination, const Registration& registration,
                  std::size_t offset, std::size_t bytes) override;
  bool done(int queue) override;
  [[nodiscard]] std::span<const std::byte> pattern() const override { return trials_.pattern(); }
  const Registration& pattern_memory(const Registration& like) override;
  void write_pattern(const Registration& pattern_memory, std::size_t offset) override;
  void read_pattern(std::size_t offset, std::uint32_t location, std::span<std::byte> seen) override;
  void fetch(void* destination, const void* source, const Registration& registration,
             std::size_t bytes) override;

  /// Memory of a location for patterns of the other end. @throws Error kInvalidArgument, kCuda
  TrialSlot& slot(std::uint32_t location);

 private:
  struct Slot {
    CopyQueue* copying = nullptr;
    // Of what goes on into the other end's window when it is in pinned memory.
    std::optional<std::size_t> offset;
    std::size_t bytes = 0;
    bool sending = false;
  };
  std::byte* staging(int queue, Gpu& gpu);

  DriverCuda* const cuda_;
  GpuTrials& trials_;
  Path& path_;
  const int first_queue_;
  CopyQueues queues_;
  std::array<Slot, kQueues> slots_;
  Mutex mutex_;  // of what prepare() makes
  std::unique_ptr<PinnedBuffer> staging_ RW_GUARDED_BY(mutex_);
  std::map<std::uint32_t, std::unique_ptr<TrialSlot>> trial_slots_ RW_GUARDED_BY(mutex_);
};

}  // namespace ropewalk::transport::window::sisci
