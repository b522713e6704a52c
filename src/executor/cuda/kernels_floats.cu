#include "executor/cuda/kernel_inl.cuh"

namespace ropewalk::executor {

template <>
KernelRow kernels_of<DataType::kFloat32>() {
  return kernel_row<DataType::kFloat32>();
}
template <>
KernelRow kernels_of<DataType::kFloat64>() {
  return kernel_row<DataType::kFloat64>();
}

}  // namespace ropewalk::executor
