// Memory of windows (link/window_layout.h): device memory and pinned host memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/shared_memory.h"

namespace ropewalk::link {

/// Device memory of the current device.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Registers host memory of another owner with CUDA, so that GPUs can access it.
class PinnedRange {
 public:
  /// @throws Error kCuda
  PinnedRange(std::byte* data, std::size_t bytes);
  ~PinnedRange();
  PinnedRange(const PinnedRange&) = delete;
  PinnedRange& operator=(const PinnedRange&) = delete;
  [[nodiscard]] std::byte* on_device() const noexcept { return on_device_; }

 private:
  std::byte* data_;
  std::byte* on_device_ = nullptr;
};

/// Host memory shared between processes and registered with CUDA for the current device.
class PinnedMemory {
 public:
  /// @throws Error kCuda, naming the size
  explicit PinnedMemory(SharedMemory memory);
  [[nodiscard]] std::byte* on_host() const noexcept { return memory_.data(); }
  [[nodiscard]] std::byte* on_device() const noexcept { return pinned_.on_device(); }

 private:
  SharedMemory memory_;
  PinnedRange pinned_;
};

}  // namespace ropewalk::link
