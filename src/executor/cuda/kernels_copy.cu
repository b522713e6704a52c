// One source and no arithmetic: bytes of any type.
#include "executor/cuda/kernel_inl.cuh"

namespace ropewalk::executor {
namespace {

template <Protocol kProtocol>
__global__ void __launch_bounds__(launch_threads(kProtocol, kMaxThreads), 1)
    copy_channels(const __grid_constant__ LaunchArgs args) {
  extern __shared__ __align__(16) std::byte shared[];
  CudaBlock block(args.links, &args.call.tag);
  run_channel<kProtocol, CopiedElement, RedOp::kSum>(block, args, blockIdx.x, shared);
}

__global__ void __launch_bounds__(launch_threads(Protocol::kSimple, kMaxThreads), 1)
    carry_messages(const __grid_constant__ MessageArgs args) {
  __shared__ MessageShared shared;
  CudaBlock block(args.links, nullptr);
  run_message(block, args, blockIdx.x, shared);
}

}  // namespace

const void* message_kernel() { return reinterpret_cast<const void*>(&carry_messages); }

std::array<const void*, kNumProtocols> copy_kernels() {
  return {reinterpret_cast<const void*>(&copy_channels<Protocol::kSimple>),
          reinterpret_cast<const void*>(&copy_channels<Protocol::kLl>),
          reinterpret_cast<const void*>(&copy_channels<Protocol::kLl128>)};
}

}  // namespace ropewalk::executor
