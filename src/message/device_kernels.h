// Small kernels of the library's for windows: what a captured call does in a CUDA graph, and many
// short copies at once. In builds with CUDA, on GPUs that its runtime reaches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ropewalk/device_window.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::message {

/// A call of ropewalk::device (include/ropewalk/device.cuh), made by one thread of a GPU; messages
/// of queues by a warp or a block.
struct DeviceCall {
  enum class Kind : std::uint8_t { kPut, kGet, kSignal, kWaitSignal, kSend, kReceive };
  rwDeviceWindow window{};
  Kind kind = Kind::kSignal;
  int peer = 0;
  int slot = 0;
  std::uint64_t count = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  void* local = nullptr;  ///< kPut, kSend: source; kGet, kReceive: destination
};

struct DeviceCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};
/// What one launch takes.
inline constexpr std::size_t kMostDeviceCopies = 128;

/// Loads the kernels, so that no launch has to wait for what streams do then.
/// @return false where there are none: the build has no CUDA, or its runtime does not see the GPU
bool load_kernels(const transport::window::Gpu& gpu);
/// On a stream of the GPU whose context is current. @pre load_kernels()
/// @throws Error kCuda
void launch(const DeviceCall& call, transport::window::CuStream stream);
/// They may run in any order. @pre at most kMostDeviceCopies, which do not overlap
void launch(std::span<const DeviceCopy> copies, transport::window::CuStream stream);

}  // namespace ropewalk::message
