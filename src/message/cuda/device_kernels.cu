#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "message/device_kernels.h"
#include "message/puts_and_signals.h"
#include "ropewalk/device.cuh"

namespace ropewalk::message {

using transport::window::CuStream;
using transport::window::Gpu;

namespace {

constexpr unsigned kThreads = 256;
// A block's share of a copy: 256 threads move four times 16 bytes each.
constexpr std::size_t kBlockBytes = 16 << 10;
constexpr std::size_t kMostBlocks = 8;

// Launched where the driver may make it ready while what is before it in the stream ends: waits for
// that, and lets the next one be made ready.
__device__ void begin_in_order() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__global__ void call_kernel(const __grid_constant__ DeviceCall call) {
  using device::Thread;
  begin_in_order();
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
  begin_in_order();
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

__global__ void __launch_bounds__(kMessageThreads)
    batch_kernel(const __grid_constant__ rwDeviceBatch batch) {
  begin_in_order();
  device::launch(device::Block{}, batch);
}

__global__ void __launch_bounds__(kMessageThreads)
    puts_and_signals_kernel(const __grid_constant__ PutsAndSignals call) {
  begin_in_order();
  put_and_signal(device::Block{}, call);
}

struct Grid {
  unsigned x;
  unsigned y;
};

template <typename Argument>
void launch(const Gpu& gpu, void* kernel, bool overlaps, Grid grid, unsigned threads,
            const Argument& argument, CuStream stream, const char* tried) {
  const transport::window::CudaApi& cuda = gpu.cuda();
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = grid.x;
  config.gridDimY = grid.y;
  config.gridDimZ = 1;
  config.blockDimX = threads;
  config.blockDimY = 1;
  config.blockDimZ = 1;
  config.hStream = reinterpret_cast<CUstream>(stream);
  config.attrs = &attribute;
  config.numAttrs = overlaps ? 1 : 0;
  void* arguments[] = {const_cast<Argument*>(&argument)};
  std::optional<transport::window::CurrentContext> current;
  transport::window::CuContext now = nullptr;
  if (cuda.context_current(&now) != transport::window::kCuSuccess || now != gpu.context()) {
    current.emplace(cuda, gpu.context());
  }
  cuda.check(cuda.launch(&config, kernel, arguments, nullptr), tried);
}

}  // namespace

std::optional<LoadedKernels> load_kernels(const transport::window::Gpu& gpu) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, gpu.ordinal()) != cudaSuccess) {
    (void)cudaGetLastError();
    return {};
  }
  // Another library may stand in for the driver.
  if (std::memcmp(properties.uuid.bytes, gpu.uuid().bytes.data(), gpu.uuid().bytes.size()) != 0 ||
      gpu.cuda().launch == nullptr) {
    return {};
  }
  const transport::window::CurrentContext current(gpu.cuda(), gpu.context());
  LoadedKernels loaded;
  const auto load = [](auto* kernel, void*& function) {
    cudaFuncAttributes attributes{};
    cudaFunction_t found = nullptr;
    if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess ||
        cudaGetFuncBySymbol(&found, reinterpret_cast<const void*>(kernel)) != cudaSuccess) {
      (void)cudaGetLastError();
      return false;
    }
    function = found;
    return true;
  };
  if (!load(call_kernel, loaded.call) || !load(copy_kernel, loaded.copy) ||
      !load(message_kernel<device::Warp>, loaded.message_of_warp) ||
      !load(message_kernel<device::Block>, loaded.message_of_block) ||
      !load(batch_kernel, loaded.batch) ||
      !load(puts_and_signals_kernel, loaded.puts_and_signals)) {
    return {};
  }
  loaded.overlaps = properties.major >= 9;
  return loaded;
}

void launch(const LoadedKernels& kernels, const Gpu& gpu, const DeviceCall& call, CuStream stream) {
  if (call.kind != DeviceCall::Kind::kSend && call.kind != DeviceCall::Kind::kReceive) {
    launch(gpu, kernels.call, kernels.overlaps, {1, 1}, 1, call, stream,
           "cuLaunchKernelEx (a window's signals)");
    return;
  }
  const bool by_warp = call.bytes <= kMostOfAWarp;
  launch(gpu, by_warp ? kernels.message_of_warp : kernels.message_of_block, kernels.overlaps,
         {1, 1}, by_warp ? 32 : kMessageThreads, call, stream,
         "cuLaunchKernelEx (a queue's message)");
}

void launch(const LoadedKernels& kernels, const Gpu& gpu, std::span<const DeviceCopy> copies,
            CuStream stream) {
  if (copies.empty()) return;
  Copies argument;
  std::size_t most = 0;
  for (std::size_t k = 0; k < copies.size(); ++k) {
    argument.each[k] = copies[k];
    most = std::max(most, copies[k].bytes);
  }
  const std::size_t blocks =
      std::clamp<std::size_t>((most + kBlockBytes - 1) / kBlockBytes, 1, kMostBlocks);
  launch(gpu, kernels.copy, false,
         {static_cast<unsigned>(copies.size()), static_cast<unsigned>(blocks)}, kThreads, argument,
         stream, "cuLaunchKernelEx (a batch's copies)");
}

void launch(const LoadedKernels& kernels, const Gpu& gpu, const rwDeviceBatch& batch,
            CuStream stream) {
  const unsigned most =
      std::max({batch.num_puts * batch.lanes, batch.num_signals, batch.num_waits, 1U});
  launch(gpu, kernels.batch, kernels.overlaps, {1, 1},
         std::min((most + 31) / 32 * 32, kMessageThreads), batch, stream,
         "cuLaunchKernelEx (a batch)");
}

void launch(const LoadedKernels& kernels, const Gpu& gpu, const PutsAndSignals& call,
            CuStream stream) {
  // Who waits is in another warp than who sees to it that all has arrived.
  const unsigned least = call.num_waits > 0 ? 2 * 32 : 1;
  static_assert(PutsAndSignals::kMostWaits <= 32);
  const unsigned most = std::max({call.num_copies * call.lanes, call.num_signals, least});
  launch(gpu, kernels.puts_and_signals, kernels.overlaps, {1, 1},
         std::min((most + 31) / 32 * 32, kMessageThreads), call, stream,
         "cuLaunchKernelEx (a batch)");
}

}  // namespace ropewalk::message
