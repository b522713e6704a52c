// One rank's part of a window in the memory of its GPU: made by its owner, reached by the others.
//
// A part has data, which the library allocates or the user brings, and a home for its counters, if
// it has any, which the library allocates: the owner's streams and kernels wait there, where a look
// costs least. Ranks of one process reach both by peer access, other processes of the host by CUDA
// IPC. Where neither works a link carries what is for that part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "message/window_memory.h"
#include "transport/window/device/gpu.h"
#include "transport/window/device/ipc_memory.h"

namespace ropewalk::message {

/// What a rank tells the others of its part. Sent as it lies: all ranks run the same build.
struct DeviceOffer {
  struct Range {
    std::uint64_t address = 0;  ///< in the owner's process; 0: no memory
    std::uint64_t offset = 0;   ///< from the beginning of the allocation, which the handle names
    transport::window::CuIpcHandle handle;
    std::uint8_t shareable = 0;  ///< the handle is one
    std::uint8_t of_pages = 0;  ///< from the driver's virtual memory: peer access does not cover it
  };
  transport::window::CuUuid gpu;
  std::uint64_t number = 0;  ///< of the part in its process
  Range counters;
  Range data;
};

/// The owner's. Ranks of the same process share it, so that it lives until none of them uses it.
class DevicePart {
 public:
  /// Zeroed, but for the user's memory.
  /// @throws Error kInvalidArgument for what is no memory of `gpu`; kCuda
  DevicePart(transport::window::Gpu& gpu, const WindowSpec& spec, std::size_t counters_bytes);
  ~DevicePart();
  DevicePart(const DevicePart&) = delete;
  DevicePart& operator=(const DevicePart&) = delete;

  [[nodiscard]] const DeviceOffer& offer() const noexcept { return offer_; }

 private:
  transport::window::Gpu& gpu_;
  transport::window::CuPointer memory_ = 0;  // counters, then data that the library allocates
  DeviceOffer offer_;
};

/// Another rank's, or this rank's own, as this rank's GPU reaches it.
class ReachedPart {
 public:
  /// @param rank whose it is
  /// @param own that rank's, where it is of this process; else null
  /// @throws Error kCuda where this rank's GPU does not reach it
  ReachedPart(transport::window::Gpus& gpus, transport::window::Gpu& gpu, int rank,
              const DeviceOffer& offer, std::shared_ptr<DevicePart> own);

  [[nodiscard]] std::uint64_t counters() const noexcept { return counters_; }
  [[nodiscard]] std::uint64_t data() const noexcept { return data_; }

 private:
  static std::uint64_t open(const transport::window::Gpu& gpu, int rank,
                            const DeviceOffer::Range& range, transport::window::IpcMemory& opened);
  std::shared_ptr<DevicePart> own_;
  transport::window::IpcMemory opened_counters_;
  transport::window::IpcMemory opened_data_;
  std::uint64_t counters_ = 0;
  std::uint64_t data_ = 0;
};

/// The GPU parts of this process's windows, by number, so that its ranks find each other's.
void publish(const std::shared_ptr<DevicePart>& part);
/// Null where it is gone.
std::shared_ptr<DevicePart> published(std::uint64_t number);

/// Whether the driver knows `address`: memory of a GPU, or pinned. It does not know pageable
/// memory.
bool is_known(const transport::window::CudaApi& cuda, const void* address) noexcept;
/// Whether kernels of `gpu` may use `address`, which the driver knows: its own memory, or pinned.
/// Memory of another GPU they reach only where that was asked for.
bool is_of(const transport::window::Gpu& gpu, const void* address) noexcept;
/// Whether `address` is memory of a GPU.
bool is_on_gpu(const transport::window::CudaApi& cuda, const void* address) noexcept;

}  // namespace ropewalk::message
