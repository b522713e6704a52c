// What is compiled for every kind of GPU (dev/cuda_architectures.py): all instructions of CudaBlock, in each protocol,
// and the conversions of small floats, which differ between architectures.
#include "executor/cuda/kernel_inl.cuh"

namespace ropewalk::executor {

template __global__ void walk_channels<Protocol::kSimple, DataType::kFloat32, RedOp::kSum, KernelKind::kNotes>(
    const __grid_constant__ LaunchArgs args);
template __global__ void walk_channels<Protocol::kLl128, DataType::kBfloat16, RedOp::kMax, KernelKind::kManySources>(
    const __grid_constant__ LaunchArgs args);
template __global__ void walk_channels<Protocol::kLl, DataType::kFloat16, RedOp::kSum, KernelKind::kNotes>(
    const __grid_constant__ LaunchArgs args);
template __global__ void walk_channels<Protocol::kLl, DataType::kFloat8e4m3, RedOp::kSum, KernelKind::kLeast>(
    const __grid_constant__ LaunchArgs args);

}  // namespace ropewalk::executor
