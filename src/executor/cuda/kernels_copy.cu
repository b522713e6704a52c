// One source and no arithmetic: bytes of any type.
#include "executor/cuda/kernel_inl.cuh"

namespace ropewalk::executor {
namespace {

template <Protocol kProtocol, KernelKind kKind>
__global__ void __launch_bounds__(launch_threads(kProtocol, kMaxThreads), 1)
    copy_channels(const __grid_constant__ LaunchArgs args) {
  extern __shared__ __align__(16) std::byte shared[];
  CudaBlock block(args.links, &args.call.tag);
  run_channel<kProtocol, CopiedElement, RedOp::kSum, kKind>(block, args, blockIdx.x, shared);
}

template <KernelKind kKind>
__global__ void __launch_bounds__(launch_threads(Protocol::kSimple, kMaxThreads), 1)
    carry_messages(const __grid_constant__ MessageArgs args) {
  __shared__ MessageShared shared;
  CudaBlock block(args.links, nullptr);
  run_message<kKind>(block, args, blockIdx.x, shared);
}

template <Protocol kProtocol>
CudaKernels kernels() {
  const auto* const notes =
      reinterpret_cast<const void*>(&copy_channels<kProtocol, KernelKind::kNotes>);
  if constexpr (kProtocol == Protocol::kSimple) {
    return {notes, notes, notes};
  } else {
    const auto* const least =
        reinterpret_cast<const void*>(&copy_channels<kProtocol, KernelKind::kLeast>);
    return {least, notes, least};  // what is copied has one source
  }
}

}  // namespace

CudaKernels message_kernels() {
  const auto* const least = reinterpret_cast<const void*>(&carry_messages<KernelKind::kLeast>);
  return {least, reinterpret_cast<const void*>(&carry_messages<KernelKind::kNotes>), least};
}

ProtocolKernels copy_kernels() {
  return {kernels<Protocol::kSimple>(), kernels<Protocol::kLl>(), kernels<Protocol::kLl128>()};
}

}  // namespace ropewalk::executor
