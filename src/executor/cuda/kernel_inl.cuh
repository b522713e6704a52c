// The kernel template, for the files that instantiate it.
#pragma once

#include <array>
#include <type_traits>

#include "executor/block/run.h"
#include "executor/cuda/cuda_block.h"
#include "executor/cuda/kernel_table.h"

namespace ropewalk::executor {

template <Protocol kProtocol, DataType kType, RedOp kOp, bool kNotes>
__global__ void __launch_bounds__(launch_threads(kProtocol, kMaxThreads), 1)
    walk_channels(const __grid_constant__ LaunchArgs args) {
  extern __shared__ __align__(16) std::byte shared[];
  CudaBlock block(args.links, &args.call.tag);
  run_channel<kProtocol, ElementOf<kType>, kOp, kNotes>(block, args, blockIdx.x, shared);
}

template <DataType kType>
KernelRow kernel_row() {
  KernelRow row{};
  const auto add = [&]<RedOp kOp>(std::integral_constant<RedOp, kOp>) {
    const auto address = [](auto* kernel) { return reinterpret_cast<const void*>(kernel); };
    const void* const simple = address(&walk_channels<Protocol::kSimple, kType, kOp, true>);
    row[static_cast<std::size_t>(kOp)] = {
        KernelPair{simple, simple},
        KernelPair{address(&walk_channels<Protocol::kLl, kType, kOp, false>),
                   address(&walk_channels<Protocol::kLl, kType, kOp, true>)},
        KernelPair{address(&walk_channels<Protocol::kLl128, kType, kOp, false>),
                   address(&walk_channels<Protocol::kLl128, kType, kOp, true>)}};
  };
  add(std::integral_constant<RedOp, RedOp::kSum>{});
  add(std::integral_constant<RedOp, RedOp::kProd>{});
  add(std::integral_constant<RedOp, RedOp::kMax>{});
  add(std::integral_constant<RedOp, RedOp::kMin>{});
  return row;
}

}  // namespace ropewalk::executor
