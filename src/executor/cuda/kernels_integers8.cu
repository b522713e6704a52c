#include "executor/cuda/kernel_inl.cuh"

namespace ropewalk::executor {

template <>
KernelRow kernels_of<DataType::kInt8>() {
  return kernel_row<DataType::kInt8>();
}
template <>
KernelRow kernels_of<DataType::kUint8>() {
  return kernel_row<DataType::kUint8>();
}

}  // namespace ropewalk::executor
