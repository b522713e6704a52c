#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "message/cuda/launch_error.h"
#include "message/device_kernels.h"
#include "ropewalk/device.cuh"

namespace ropewalk::message {
namespace {

constexpr unsigned kThreads = 256;
// A block's share of a copy: 256 threads move four times 16 bytes each.
constexpr std::size_t kBlockBytes = 16 << 10;
constexpr std::size_t kMostBlocks = 8;

__global__ void call_kernel(const __grid_constant__ DeviceCall call) {
  using device::Thread;
  switch (call.kind) {
    case DeviceCall::Kind::kPut:
      // The stream goes on when the source may be reused.
      if (device::put(Thread{}, call.window, call.peer, call.offset, call.local, call.bytes) ==
          device::Status::kDone) {
        device::flush(Thread{}, call.window);
      }
      return;
    case DeviceCall::Kind::kGet:
      device::get(Thread{}, call.window, call.peer, call.offset, call.local, call.bytes);
      return;
    case DeviceCall::Kind::kSignal:
      device::signal(Thread{}, call.window, call.peer, call.slot, call.count);
      return;
    case DeviceCall::Kind::kWaitSignal:
      device::wait_signal(Thread{}, call.window, call.peer, call.slot, call.count);
      return;
    case DeviceCall::Kind::kSend:
    case DeviceCall::Kind::kReceive: return;  // message_kernel's
  }
}

// More are faster by a block.
constexpr std::size_t kMostOfAWarp = 256;
constexpr unsigned kMessageThreads = 512;

template <typename Scope>
__global__ void __launch_bounds__(kMessageThreads)
    message_kernel(const __grid_constant__ DeviceCall call) {
  const Scope scope;
  device::Queue queue(scope, call.window, call.peer, call.slot);
  if (call.kind == DeviceCall::Kind::kSend) {
    queue.send(call.local, call.bytes);
  } else {
    queue.receive(call.local, call.bytes);
  }
}

struct Copies {
  DeviceCopy each[kMostDeviceCopies];
};

// The blocks of one column share one copy.
struct BlockOfColumn {
  __device__ std::size_t rank() const { return blockIdx.y * blockDim.x + threadIdx.x; }
  __device__ std::size_t size() const { return gridDim.y * blockDim.x; }
};

__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ Copies copies) {
  const DeviceCopy& copy = copies.each[blockIdx.x];
  device::detail::copy<true>(BlockOfColumn{}, reinterpret_cast<unsigned char*>(copy.to),
                             reinterpret_cast<const unsigned char*>(copy.from), copy.bytes);
}

}  // namespace

bool load_kernels(const transport::window::Gpu& gpu) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, gpu.ordinal()) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  // Another library may stand in for the driver.
  if (std::memcmp(properties.uuid.bytes, gpu.uuid().bytes.data(), gpu.uuid().bytes.size()) != 0) {
    return false;
  }
  const transport::window::CurrentContext current(gpu.cuda(), gpu.context());
  cudaFuncAttributes attributes{};
  const bool loaded =
      cudaFuncGetAttributes(&attributes, call_kernel) == cudaSuccess &&
      cudaFuncGetAttributes(&attributes, copy_kernel) == cudaSuccess &&
      cudaFuncGetAttributes(&attributes, message_kernel<device::Warp>) == cudaSuccess &&
      cudaFuncGetAttributes(&attributes, message_kernel<device::Block>) == cudaSuccess;
  if (!loaded) (void)cudaGetLastError();
  return loaded;
}

void launch(const DeviceCall& call, transport::window::CuStream stream) {
  auto* const on = reinterpret_cast<cudaStream_t>(stream);
  if (call.kind != DeviceCall::Kind::kSend && call.kind != DeviceCall::Kind::kReceive) {
    call_kernel<<<1, 1, 0, on>>>(call);
    check_launch(cudaGetLastError(), "launching a kernel for a window's signals");
    return;
  }
  if (call.bytes <= kMostOfAWarp) {
    message_kernel<device::Warp><<<1, 32, 0, on>>>(call);
  } else {
    message_kernel<device::Block><<<1, kMessageThreads, 0, on>>>(call);
  }
  check_launch(cudaGetLastError(), "launching a kernel for a queue's message");
}

void launch(std::span<const DeviceCopy> copies, transport::window::CuStream stream) {
  if (copies.empty()) return;
  Copies argument;
  std::size_t most = 0;
  for (std::size_t k = 0; k < copies.size(); ++k) {
    argument.each[k] = copies[k];
    most = std::max(most, copies[k].bytes);
  }
  const std::size_t blocks =
      std::clamp<std::size_t>((most + kBlockBytes - 1) / kBlockBytes, 1, kMostBlocks);
  const dim3 grid(static_cast<unsigned>(copies.size()), static_cast<unsigned>(blocks));
  copy_kernel<<<grid, kThreads, 0, reinterpret_cast<cudaStream_t>(stream)>>>(argument);
  check_launch(cudaGetLastError(), "launching a kernel for a batch's copies");
}

}  // namespace ropewalk::message
