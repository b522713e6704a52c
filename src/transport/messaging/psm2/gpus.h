// Memory of GPUs on a device: whether it is taken, and which GPUs have moved patterns right.
//
// libpsm2 knows GPU memory by its address, and copies it itself: with kFlagGdrCopyOnly through a
// mapping (GDRCopy), and not by CUDA, whose copies may wait for a kernel that waits for the
// message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "core/mutex.h"
#include "transport/messaging/gpus.h"
#include "transport/messaging/psm2/endpoint.h"
#include "transport/transport.h"
#include "transport/window/device/gpu_memory.h"

namespace ropewalk::transport::psm2 {

/// Threads: any. Lives as long as the transport.
class Gpus {
 public:
  /// None of their memory is taken.
  Gpus(std::string device, std::string why_not)
      : device_(std::move(device)), why_not_(std::move(why_not)) {}
  /// @param verify each GPU is tried by patterns
  Gpus(std::string device, std::shared_ptr<window::DriverCuda> cuda, bool verify)
      : device_(std::move(device)), cuda_(std::move(cuda)), verify_(verify) {}

  [[nodiscard]] bool taken() const noexcept { return cuda_ != nullptr; }
  [[nodiscard]] const std::string& why_not() const noexcept { return why_not_; }
  /// @pre taken()
  [[nodiscard]] window::DriverCuda& cuda() const noexcept { return *cuda_; }

  /// Tries memory of that GPU once (try_gpu()), over an endpoint of the device.
  /// @pre the endpoint's mutex is not held
  /// @throws Error kSystem when patterns were refused or came wrong
  void check(Endpoint& port, window::Gpu& gpu);

  /// Memory that was registered with an end. Waits for the trial of a GPU's first memory.
  /// @throws Error kInvalidArgument, kSystem
  std::unique_ptr<Registration> register_memory(Endpoint& port, void* data, std::size_t bytes,
                                                MemoryKind kind);

 private:
  const std::string device_;
  const std::string why_not_;
  const std::shared_ptr<window::DriverCuda> cuda_;
  const bool verify_ = false;
  Mutex mutex_;  // also while a trial is made; before an endpoint's
  // By ordinal: why its trial failed; empty if not.
  std::map<int, std::string> wrong_ RW_GUARDED_BY(mutex_);
};

/// GPU memory that was registered with an end.
class GpuRegistration final : public Registration {
 public:
  explicit GpuRegistration(window::GpuMemory of) : memory(std::move(of)) {}
  [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::kCuda; }
  const window::GpuMemory memory;
};
/// Null for host memory.
[[nodiscard]] const GpuRegistration* on_gpu(const Registration* registration);
/// libpsm2's flags for a message in this memory.
[[nodiscard]] std::uint32_t flags_of(const Registration* registration);
/// @throws Error kInvalidArgument when it is a GPU's and not all of the message is within it
void check_holds(const Registration* registration, const void* data, std::size_t bytes);
/// messaging::wire_checksum() of a message in this memory. Waits for GPU memory to be copied.
/// @throws Error kCuda, kTimeout
[[nodiscard]] std::uint64_t checksum_of(const Registration* registration, const void* data,
                                        std::size_t bytes);

}  // namespace ropewalk::transport::psm2
