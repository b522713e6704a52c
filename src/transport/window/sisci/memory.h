// Registered memory: segments around memory of this process, which the adapter reads and writes.
//
// Host memory is registered by the pages around it. Of GPU memory the whole allocation is attached,
// once, less the pages that it shares with other allocations: what lies in those is staged, since
// a peer is not to reach what nobody handed to it. Before GPU memory may be freed its segment has
// to be gone, so that the end of its last registration waits for that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "core/mutex.h"
#include "transport/transport.h"
#include "transport/window/device/driver_cuda.h"
#include "transport/window/device/gpu_memory.h"
#include "transport/window/sisci/segment.h"

namespace ropewalk::transport::window::sisci {

/// Whole pages of one kind of memory.
struct Pages {
  MemoryKind kind = MemoryKind::kHost;
  std::byte* begin = nullptr;
  std::size_t bytes = 0;
  std::uint64_t allocation = 0;  ///< of GPU memory: its number, which no other ever has; 0: unknown
};

/// A segment around such pages.
class Region {
 public:
  /// @return null, with the reason in words, where the library does not take it
  static std::shared_ptr<Region> make(Context& context, unsigned adapter, const Pages& pages,
                                      std::string& why_not);
  /// Returns when no other end reaches the memory any more.
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  [[nodiscard]] LocalSegment segment() const noexcept { return segment_; }
  [[nodiscard]] unsigned id() const noexcept { return id_; }
  [[nodiscard]] bool holds(const void* data, std::size_t bytes) const noexcept;
  /// Whether those pages are of the same memory as this, and within it.
  [[nodiscard]] bool holds(const Pages& pages) const noexcept;
  [[nodiscard]] std::size_t offset(const void* data) const noexcept {
    return static_cast<std::size_t>(static_cast<const std::byte*>(data) - pages_.begin);
  }
  /// Cuts off the other ends, for good.
  void revoke();
  [[nodiscard]] bool revoked() const noexcept { return revoked_; }

 private:
  Region(Context& context, unsigned adapter, const Pages& pages)
      : context_(context), adapter_(adapter), pages_(pages) {}
  Status fill(const char*& what);
  void remove();

  Context& context_;
  const unsigned adapter_;
  const Pages pages_;
  std::shared_ptr<OpenDescriptor> descriptor_;
  LocalSegment segment_ = nullptr;
  unsigned id_ = 0;
  std::atomic<bool> revoked_{false};
};

/// A registration of the driver's. Without a region the CPU copies, through windows.
class SisciRegistration : public Registration {
 public:
  explicit SisciRegistration(std::shared_ptr<Region> region) : region_(std::move(region)) {}
  [[nodiscard]] const std::shared_ptr<Region>& region() const noexcept { return region_; }

 private:
  std::shared_ptr<Region> region_;
};

/// One of GPU memory. Without a region, and where the region does not hold a message, it is staged.
class GpuRegistration final : public SisciRegistration {
 public:
  GpuRegistration(GpuMemory memory, std::shared_ptr<Region> region)
      : SisciRegistration(std::move(region)), memory_(std::move(memory)) {}
  [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::kCuda; }
  [[nodiscard]] const GpuMemory& memory() const noexcept { return memory_; }

 private:
  GpuMemory memory_;
};

/// The regions of an adapter. Registrations within the same pages share one. Threads: any.
class Regions {
 public:
  /// @param cuda null where GPU memory is not taken
  Regions(Context& context, unsigned adapter, DriverCuda* cuda)
      : context_(context), adapter_(adapter), cuda_(cuda) {}
  /// Host memory, and GPU memory that CUDA copies from and to, always can be registered; whether it
  /// has a region depends on the library.
  /// @throws Error kInvalidArgument for other memory
  std::unique_ptr<Registration> add(void* data, std::size_t bytes, MemoryKind kind);

 private:
  std::unique_ptr<Registration> add_gpu(void* data, std::size_t bytes);
  std::shared_ptr<Region> attach(const GpuMemory& memory, std::string& why_not);
  std::shared_ptr<Region> find_or_make(const Pages& pages, std::string& why_not);
  Context& context_;
  const unsigned adapter_;
  DriverCuda* const cuda_;
  Mutex mutex_;
  std::multimap<const std::byte*, std::weak_ptr<Region>> known_ RW_GUARDED_BY(mutex_);
  bool said_why_not_ RW_GUARDED_BY(mutex_) = false;
};

}  // namespace ropewalk::transport::window::sisci
