#include "executor/cuda/kernel_inl.cuh"

namespace ropewalk::executor {

template <>
KernelRow kernels_of<DataType::kFloat16>() {
  return kernel_row<DataType::kFloat16>();
}
template <>
KernelRow kernels_of<DataType::kBfloat16>() {
  return kernel_row<DataType::kBfloat16>();
}

}  // namespace ropewalk::executor
