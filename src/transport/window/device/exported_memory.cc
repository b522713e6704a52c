#include "transport/window/device/exported_memory.h"

#include <unistd.h>

#include <algorithm>

#include "core/error.h"

namespace ropewalk::transport::window {

ExportedMemory::ExportedMemory(const GpuMemory& memory) {
  const CudaApi& cuda = memory.gpu->cuda();
  int can = 0;
  if (cuda.range_handle == nullptr ||
      cuda.device_attribute(&can, kCuAttributeDmaBuf, memory.gpu->device()) != kCuSuccess ||
      can == 0) {
    throw Error(Errc::kCuda, "{} makes no dma-buf descriptors", memory.gpu->name());
  }
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = memory.data / page * page;
  const std::uint64_t end =
      (memory.data + std::max<std::uint64_t>(memory.bytes, 1) + page - 1) / page * page;
  const CurrentContext current(cuda, memory.gpu->context());
  int descriptor = -1;
  // Drivers before 12.8 do not know the flag, and others may have no such mapping.
  CuResult made =
      cuda.range_handle(&descriptor, begin, end - begin, kCuRangeDmaBuf, kCuRangeOverPcie);
  if (made != kCuSuccess) {
    made = cuda.range_handle(&descriptor, begin, end - begin, kCuRangeDmaBuf, 0);
  }
  cuda.check(made, "cuMemGetHandleForAddressRange");
  descriptor_ = FileDescriptor(descriptor);
  offset_ = memory.data - begin;
}

}  // namespace ropewalk::transport::window
