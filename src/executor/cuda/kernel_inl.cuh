// The kernel template, for the files that instantiate it.
#pragma once

#include <array>
#include <type_traits>

#include "executor/block/run.h"
#include "executor/cuda/cuda_block.h"
#include "executor/cuda/kernel_table.h"

namespace ropewalk::executor {

template <Protocol kProtocol, DataType kType, RedOp kOp, KernelKind kKind>
__global__ void __launch_bounds__(launch_threads(kProtocol, kMaxThreads), 1)
    walk_channels(const __grid_constant__ LaunchArgs args) {
  extern __shared__ __align__(16) std::byte shared[];
  CudaBlock block(args.links, &args.call.tag);
  run_channel<kProtocol, ElementOf<kType>, kOp, kKind>(block, args, blockIdx.x, shared);
}

template <DataType kType>
KernelRow kernel_row() {
  KernelRow row{};
  const auto add = [&]<RedOp kOp>(std::integral_constant<RedOp, kOp>) {
    const auto address = [](auto* kernel) { return reinterpret_cast<const void*>(kernel); };
    const void* const simple =
        address(&walk_channels<Protocol::kSimple, kType, kOp, KernelKind::kNotes>);
    const auto of = [&]<Protocol kProtocol>(std::integral_constant<Protocol, kProtocol>) {
      return CudaKernels{address(&walk_channels<kProtocol, kType, kOp, KernelKind::kLeast>),
                         address(&walk_channels<kProtocol, kType, kOp, KernelKind::kNotes>),
                         address(&walk_channels<kProtocol, kType, kOp, KernelKind::kManySources>)};
    };
    row[static_cast<std::size_t>(kOp)] = {CudaKernels{simple, simple, simple},
                                          of(std::integral_constant<Protocol, Protocol::kLl>{}),
                                          of(std::integral_constant<Protocol, Protocol::kLl128>{})};
  };
  add(std::integral_constant<RedOp, RedOp::kSum>{});
  add(std::integral_constant<RedOp, RedOp::kProd>{});
  add(std::integral_constant<RedOp, RedOp::kMax>{});
  add(std::integral_constant<RedOp, RedOp::kMin>{});
  return row;
}

}  // namespace ropewalk::executor
