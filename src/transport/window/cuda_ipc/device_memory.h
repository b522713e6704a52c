// Device memory that this process registered, in the form in which other processes can open it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/file_descriptor.h"
#include "core/mutex.h"
#include "transport/transport.h"
#include "transport/window/device/gpu_memory.h"

namespace ropewalk::transport::window {

/// A whole allocation. Memory of the ordinary allocator has a handle that travels as bytes; memory
/// of virtual-memory management, which NCCL uses from 2.19 on, a descriptor.
struct Segment {
  CuPointer base = 0;
  std::size_t bytes = 0;
  CuIpcHandle handle;
  FileDescriptor descriptor;
};

/// Registered memory. Threads: any, it does not change.
struct DeviceMemory : GpuMemory {
  std::uint64_t key = 0;
  bool constant = false;          ///< nobody writes it while it is registered
  std::vector<Segment> segments;  ///< of its allocations
  std::string why_not_offered;    ///< empty: other processes can open it
};

/// Finds out what memory that is. Memory that cannot be handed to other processes is accepted.
/// @throws as find_gpu_memory()
DeviceMemory describe(Gpus& gpus, std::uint64_t key, void* data, std::size_t bytes);

class OfferLine;

/// The registrations of a driver that live, and the lines on which they were offered. Threads: any.
class Registrations {
 public:
  std::uint64_t add();
  /// Ends a registration, and notifies all peers to which it was offered.
  void end(std::uint64_t key);
  [[nodiscard]] bool ended(std::uint64_t key) const;
  void add_line(const std::shared_ptr<OfferLine>& line);

 private:
  mutable Mutex mutex_;
  std::uint64_t last_ RW_GUARDED_BY(mutex_) = 0;
  std::set<std::uint64_t> live_ RW_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<OfferLine>> lines_ RW_GUARDED_BY(mutex_);
};

class DeviceRegistration final : public Registration {
 public:
  DeviceRegistration(Registrations& registrations, Gpus& gpus, void* data, std::size_t bytes,
                     bool constant = false);
  ~DeviceRegistration() override;
  DeviceRegistration(const DeviceRegistration&) = delete;
  DeviceRegistration& operator=(const DeviceRegistration&) = delete;
  [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::kCuda; }
  [[nodiscard]] const DeviceMemory& memory() const noexcept { return memory_; }

 private:
  Registrations& registrations_;
  const std::uint64_t key_;
  DeviceMemory memory_;
};

}  // namespace ropewalk::transport::window
