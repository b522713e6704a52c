// Small kernels of the library's for windows: what a captured call does in a CUDA graph, and many
// short copies at once. In builds with CUDA, on GPUs that its runtime reaches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
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

/// The kernels on one GPU, as its driver names them.
struct LoadedKernels {
  void* call = nullptr;
  void* copy = nullptr;
  void* message_of_warp = nullptr;
  void* message_of_block = nullptr;
  void* batch = nullptr;
  void* puts_and_signals = nullptr;
  bool overlaps = false;  ///< one may be made ready while what is before it in its stream ends
};

/// Loads the kernels, so that no launch has to wait for what streams do then.
/// @return nothing where there are none: the build has no CUDA, or its runtime does not see the GPU
std::optional<LoadedKernels> load_kernels(const transport::window::Gpu& gpu);
/// On a stream of `gpu`, whose kernels these are. Nothing but the launch asks the driver where its
/// context is current. @throws Error kCuda
void launch(const LoadedKernels& kernels, const transport::window::Gpu& gpu, const DeviceCall& call,
            transport::window::CuStream stream);
/// They may run in any order. @pre at most kMostDeviceCopies, which do not overlap
void launch(const LoadedKernels& kernels, const transport::window::Gpu& gpu,
            std::span<const DeviceCopy> copies, transport::window::CuStream stream);
/// By one block.
void launch(const LoadedKernels& kernels, const transport::window::Gpu& gpu,
            const rwDeviceBatch& batch, transport::window::CuStream stream);

}  // namespace ropewalk::message
