// GPU memory for the trials of an adapter's connections.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/mutex.h"
#include "transport/window/device/driver_cuda.h"
#include "transport/window/device/gpu_memory.h"
#include "transport/window/sisci/memory.h"

namespace ropewalk::transport::window::sisci {

class TrialSlot;

/// A random pattern; at each location memory that holds it, registered as messages' memory is, and
/// room beside it for the patterns of other ends. Threads: any.
class GpuTrials {
 public:
  /// @param cuda null where there is only the pattern
  GpuTrials(DriverCuda* cuda, Regions& regions);
  [[nodiscard]] std::span<const std::byte> pattern() const noexcept { return pattern_; }
  /// Memory of that location which begins with the pattern.
  /// @throws Error kInvalidArgument, kCuda
  const GpuRegistration& source(std::uint32_t location);
  /// @throws Error kInvalidArgument, kCuda
  std::unique_ptr<TrialSlot> take_slot(std::uint32_t location);

 private:
  friend class TrialSlot;
  struct TrialMemory {
    std::unique_ptr<DeviceBuffer> buffer;
    std::unique_ptr<Registration> registration;
    std::vector<std::size_t> free;  // offsets of slots
  };
  TrialMemory& at(std::uint32_t location) RW_REQUIRES(mutex_);
  void give_back(std::uint32_t location, std::size_t offset);

  DriverCuda* const cuda_;
  Regions& regions_;
  std::vector<std::byte> pattern_;
  Mutex mutex_;
  std::map<std::uint32_t, TrialMemory> memories_ RW_GUARDED_BY(mutex_);
};

/// GPU memory of one connection for the pattern of its other end. It is given back at its end, and
/// does not outlive its GpuTrials.
class TrialSlot {
 public:
  TrialSlot(GpuTrials& owner, std::uint32_t location, std::size_t offset,
            const GpuRegistration& memory);
  ~TrialSlot();
  TrialSlot(const TrialSlot&) = delete;
  TrialSlot& operator=(const TrialSlot&) = delete;
  /// As long as the pattern.
  [[nodiscard]] void* data() const noexcept;
  [[nodiscard]] const GpuRegistration& memory() const noexcept { return memory_; }
  /// These wait for their copies. @throws Error kCuda
  void clear();  // what an earlier trial left must not pass for the next one's
  void write(std::span<const std::byte> bytes);
  void fetch(std::span<std::byte> seen);

 private:
  GpuTrials& owner_;
  const std::uint32_t location_;
  const std::size_t offset_;
  const GpuRegistration& memory_;
};

}  // namespace ropewalk::transport::window::sisci
