// A rank's window: the device memory that the other ranks of its communicator write.
//
// It holds, for every peer and channel, the link from that peer in each protocol, for every link to
// a peer the counter of what the peer has consumed (executor/block/links.h), and the peers' tags
// (executor/block/launch.h). The layout is arithmetic, so ranks exchange nothing but the window's
// address.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/shared_memory.h"
#include "executor/block/links.h"

namespace ropewalk::link {

struct WindowLayout {
  int ranks = 1;  ///< of the host that has most; they are named here by their numbers on a host
  int channels = 1;
  int all_ranks = 1;  ///< of all hosts
  std::array<executor::FifoShape, executor::kNumProtocols> shapes;

  /// Of the link from `source` in the window of `rank`.
  [[nodiscard]] std::size_t link_offset(executor::Protocol protocol, int channel, int rank,
                                        int source) const noexcept;
  /// Of the counter of the link to `destination` in the window of `rank`.
  [[nodiscard]] std::size_t counter_offset(executor::Protocol protocol, int channel,
                                           int destination) const noexcept;
  /// Of the tags that `rank`, of all, leaves.
  [[nodiscard]] std::size_t board_offset(int rank) const noexcept;
  [[nodiscard]] std::size_t bytes() const noexcept;
  /// Of all ranks' tags for one rank.
  [[nodiscard]] std::size_t bytes_of_boards() const noexcept { return boards_bytes(); }

 private:
  [[nodiscard]] std::size_t stride(executor::Protocol protocol) const noexcept;
  [[nodiscard]] std::size_t counters_bytes() const noexcept;
  [[nodiscard]] std::size_t boards_bytes() const noexcept;
};

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

/// Memory of the host, shared between processes, that the current device reaches.
class PinnedMemory {
 public:
  /// @throws Error kCuda with what was asked for
  explicit PinnedMemory(SharedMemory memory);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  [[nodiscard]] std::byte* on_device() const noexcept { return on_device_; }

 private:
  SharedMemory memory_;
  std::byte* on_device_ = nullptr;
};

/// Another process's device memory, opened by CUDA IPC.
class OpenedMemory {
 public:
  OpenedMemory() = default;
  explicit OpenedMemory(const cudaIpcMemHandle_t& handle);
  ~OpenedMemory();
  OpenedMemory(OpenedMemory&& other) noexcept;
  OpenedMemory& operator=(OpenedMemory&& other) noexcept;
  OpenedMemory(const OpenedMemory&) = delete;
  OpenedMemory& operator=(const OpenedMemory&) = delete;
  [[nodiscard]] std::byte* data() const noexcept { return data_; }

 private:
  std::byte* data_ = nullptr;
};

}  // namespace ropewalk::link
