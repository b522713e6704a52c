#include "executor/cuda/kernel_inl.cuh"

namespace ropewalk::executor {

template <>
KernelRow kernels_of<DataType::kInt32>() {
  return kernel_row<DataType::kInt32>();
}
template <>
KernelRow kernels_of<DataType::kUint32>() {
  return kernel_row<DataType::kUint32>();
}

}  // namespace ropewalk::executor
