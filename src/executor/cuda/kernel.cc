#include "executor/cuda/kernel.h"

#include <array>

#include "core/error.h"
#include "executor/cuda/kernel_table.h"

namespace ropewalk::executor {

CudaKernels cuda_kernels(Protocol protocol, DataType type, RedOp op, bool combines) {
  static const ProtocolKernels kCopies = copy_kernels();
  static const std::array<KernelRow, kNumDataTypes> kKernels{
      kernels_of<DataType::kInt8>(),       kernels_of<DataType::kUint8>(),
      kernels_of<DataType::kInt32>(),      kernels_of<DataType::kUint32>(),
      kernels_of<DataType::kInt64>(),      kernels_of<DataType::kUint64>(),
      kernels_of<DataType::kFloat16>(),    kernels_of<DataType::kFloat32>(),
      kernels_of<DataType::kFloat64>(),    kernels_of<DataType::kBfloat16>(),
      kernels_of<DataType::kFloat8e4m3>(), kernels_of<DataType::kFloat8e5m2>()};
  const auto p = static_cast<std::size_t>(protocol);
  if (!combines) return kCopies[p];
  if (op == RedOp::kAvg || op == RedOp::kPreMulSum) op = RedOp::kSum;
  return kKernels[static_cast<std::size_t>(type)][static_cast<std::size_t>(op)][p];
}

CudaKernels cuda_message_kernels() { return message_kernels(); }

}  // namespace ropewalk::executor
