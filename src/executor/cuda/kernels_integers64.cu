#include "executor/cuda/kernel_inl.cuh"

namespace ropewalk::executor {

template <>
KernelRow kernels_of<DataType::kInt64>() {
  return kernel_row<DataType::kInt64>();
}
template <>
KernelRow kernels_of<DataType::kUint64>() {
  return kernel_row<DataType::kUint64>();
}

}  // namespace ropewalk::executor
