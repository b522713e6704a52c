// Registered memory: segments around memory of this process, which the adapter reads and writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "core/mutex.h"
#include "transport/transport.h"
#include "transport/window/sisci/segment.h"

namespace ropewalk::transport::window::sisci {

/// A segment around whole pages of host memory.
class Region {
 public:
  /// @return null, with the reason in words, where the library does not take it
  static std::shared_ptr<Region> make(Context& context, unsigned adapter, std::byte* begin,
                                      std::size_t bytes, std::string& why_not);
  /// Returns when no other end reaches the memory any more.
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  [[nodiscard]] LocalSegment segment() const noexcept { return segment_; }
  [[nodiscard]] unsigned id() const noexcept { return id_; }
  [[nodiscard]] bool holds(const void* data, std::size_t bytes) const noexcept;
  [[nodiscard]] std::size_t offset(const void* data) const noexcept {
    return static_cast<std::size_t>(static_cast<const std::byte*>(data) - begin_);
  }
  /// Cuts off the other ends, for good.
  void revoke();
  [[nodiscard]] bool revoked() const noexcept { return revoked_; }

 private:
  Region(Context& context, unsigned adapter, std::byte* begin, std::size_t bytes)
      : context_(context), adapter_(adapter), begin_(begin), bytes_(bytes) {}
  Context& context_;
  unsigned adapter_;
  std::byte* begin_;
  std::size_t bytes_;
  std::shared_ptr<OpenDescriptor> descriptor_;
  LocalSegment segment_ = nullptr;
  unsigned id_ = 0;
  std::atomic<bool> revoked_{false};
};

/// A registration of the driver's. Without a region the CPU copies, through windows.
class SisciRegistration final : public Registration {
 public:
  explicit SisciRegistration(std::shared_ptr<Region> region) : region_(std::move(region)) {}
  [[nodiscard]] const std::shared_ptr<Region>& region() const noexcept { return region_; }

 private:
  std::shared_ptr<Region> region_;
};

/// The regions of an adapter. Registrations within the same pages share one. Threads: any.
class Regions {
 public:
  Regions(Context& context, unsigned adapter) : context_(context), adapter_(adapter) {}
  /// Host memory always can be registered; whether it has a region depends on the library.
  /// @throws Error kInvalidArgument for memory of another kind
  std::unique_ptr<Registration> add(void* data, std::size_t bytes, MemoryKind kind);

 private:
  std::shared_ptr<Region> find_or_make(std::byte* begin, std::size_t bytes);
  Context& context_;
  const unsigned adapter_;
  Mutex mutex_;
  std::multimap<const std::byte*, std::weak_ptr<Region>> known_ RW_GUARDED_BY(mutex_);
  bool said_why_not_ RW_GUARDED_BY(mutex_) = false;
};

}  // namespace ropewalk::transport::window::sisci
