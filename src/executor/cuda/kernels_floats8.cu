#include "executor/cuda/kernel_inl.cuh"

namespace ropewalk::executor {

template <>
KernelRow kernels_of<DataType::kFloat8e4m3>() {
  return kernel_row<DataType::kFloat8e4m3>();
}
template <>
KernelRow kernels_of<DataType::kFloat8e5m2>() {
  return kernel_row<DataType::kFloat8e5m2>();
}

}  // namespace ropewalk::executor
