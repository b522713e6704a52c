// One source and no arithmetic: bytes of any type.
#include "executor/cuda/kernel_inl.cuh"

namespace ropewalk::executor {
namespace {

template <Protocol kProtocol, bool kNotes>
__global__ void __launch_bounds__(launch_threads(kProtocol, kMaxThreads), 1)
    copy_channels(const __grid_constant__ LaunchArgs args) {
  extern __shared__ __align__(16) std::byte shared[];
  CudaBlock block(args.links, &args.call.tag);
  run_channel<kProtocol, CopiedElement, RedOp::kSum, kNotes>(block, args, blockIdx.x, shared);
}

template <bool kNotes>
__global__ void __launch_bounds__(launch_threads(Protocol::kSimple, kMaxThreads), 1)
    carry_messages(const __grid_constant__ MessageArgs args) {
  __shared__ MessageShared shared;
  CudaBlock block(args.links, nullptr);
  run_message<kNotes>(block, args, blockIdx.x, shared);
}

template <Protocol kProtocol>
KernelPair pair() {
  // Simple notes always.
  constexpr bool kOne = kProtocol == Protocol::kSimple;
  return {reinterpret_cast<const void*>(&copy_channels<kProtocol, kOne>),
          reinterpret_cast<const void*>(&copy_channels<kProtocol, true>)};
}

}  // namespace

KernelPair message_kernels() {
  return {reinterpret_cast<const void*>(&carry_messages<false>),
          reinterpret_cast<const void*>(&carry_messages<true>)};
}

ProtocolKernels copy_kernels() {
  return {pair<Protocol::kSimple>(), pair<Protocol::kLl>(), pair<Protocol::kLl128>()};
}

}  // namespace ropewalk::executor
