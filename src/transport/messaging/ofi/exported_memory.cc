#include "transport/messaging/ofi/exported_memory.h"

#include <unistd.h>

#include <algorithm>

#include "core/error.h"

namespace ropewalk::transport::ofi {

ExportedMemory::ExportedMemory(const window::GpuMemory& memory) {
  const window::CudaApi& cuda = memory.gpu->cuda();
  int can = 0;
  if (cuda.range_handle == nullptr ||
      cuda.device_attribute(&can, window::kCuAttributeDmaBuf, memory.gpu->device()) !=
          window::kCuSuccess ||
      can == 0) {
    throw Error(Errc::kCuda, "{} makes no dma-buf descriptors", memory.gpu->name());
  }
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = memory.data / page * page;
  const std::uint64_t end =
      (memory.data + std::max<std::uint64_t>(memory.bytes, 1) + page - 1) / page * page;
  const window::CurrentContext current(cuda, memory.gpu->context());
  int descriptor = -1;
  // Drivers before 12.8 do not know the flag, and others may have no such mapping.
  window::CuResult made = cuda.range_handle(&descriptor, begin, end - begin, window::kCuRangeDmaBuf,
                                            window::kCuRangeOverPcie);
  if (made != window::kCuSuccess) {
    made = cuda.range_handle(&descriptor, begin, end - begin, window::kCuRangeDmaBuf, 0);
  }
  cuda.check(made, "cuMemGetHandleForAddressRange");
  descriptor_ = FileDescriptor(descriptor);
  offset_ = memory.data - begin;
}

}  // namespace ropewalk::transport::ofi
