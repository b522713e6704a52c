#include "transport/window/cuda_ipc/device_memory.h"

#include <utility>

#include "core/error.h"
#include "transport/window/cuda_ipc/offers.h"
#include "transport/window/device/ipc_memory.h"

namespace ropewalk::transport::window {
namespace {

// @return why it cannot be; empty for success
std::string export_segment(const Gpu& gpu, const RetainedAllocation& retained, Segment& segment) {
  const CudaApi& cuda = gpu.cuda();
  if (!retained.held()) {
    try {
      segment.handle = ipc_handle_of(gpu, segment.base);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  CuAllocationProperties properties;
  if (cuda.allocation_properties(&properties, retained.handle()) == kCuSuccess &&
      (properties.handle_types & kCuHandleFileDescriptor) == 0) {
    return "it was allocated without CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR";
  }
  int descriptor = -1;
  const CuResult result =
      cuda.export_allocation(&descriptor, retained.handle(), kCuHandleFileDescriptor, 0);
  if (result != kCuSuccess) return "cuMemExportToShareableHandle: " + cuda.words(result);
  segment.descriptor = FileDescriptor(descriptor);
  return "";
}

}  // namespace

DeviceMemory describe(Gpus& gpus, std::uint64_t key, void* data, std::size_t bytes) {
  DeviceMemory memory{find_gpu_memory(gpus, data, bytes), key, false, {}, {}};
  if (memory.allocations.size() > kMaxSegments) memory.why_not_offered = "it has too many parts";
  const CudaApi& cuda = gpus.cuda();
  const CurrentContext current(cuda, memory.gpu->context());
  for (const Allocation& allocation : memory.allocations) {
    if (!memory.why_not_offered.empty()) break;
    Segment segment;
    segment.base = allocation.base;
    segment.bytes = allocation.bytes;
    const RetainedAllocation retained(cuda, segment.base);
    memory.why_not_offered = export_segment(*memory.gpu, retained, segment);
    memory.segments.push_back(std::move(segment));
  }
  return memory;
}

std::uint64_t Registrations::add() {
  const Lock lock(mutex_);
  live_.insert(++last_);
  return last_;
}

void Registrations::end(std::uint64_t key) {
  std::vector<std::shared_ptr<OfferLine>> lines;
  {
    const Lock lock(mutex_);
    live_.erase(key);
    for (const std::weak_ptr<OfferLine>& weak : lines_) {
      if (std::shared_ptr<OfferLine> line = weak.lock()) lines.push_back(std::move(line));
    }
  }
  for (const std::shared_ptr<OfferLine>& line : lines) line->withdraw(key);
}

bool Registrations::ended(std::uint64_t key) const {
  const Lock lock(mutex_);
  return !live_.contains(key);
}

void Registrations::add_line(const std::shared_ptr<OfferLine>& line) {
  const Lock lock(mutex_);
  std::erase_if(lines_, [](const std::weak_ptr<OfferLine>& weak) { return weak.expired(); });
  lines_.push_back(line);
}

DeviceRegistration::DeviceRegistration(Registrations& registrations, Gpus& gpus, void* data,
                                       std::size_t bytes, bool constant)
    : registrations_(registrations), key_(registrations.add()) {
  try {
    memory_ = describe(gpus, key_, data, bytes);
    memory_.constant = constant;
  } catch (...) {
    registrations_.end(key_);
    throw;
  }
}

DeviceRegistration::~DeviceRegistration() { registrations_.end(key_); }

}  // namespace ropewalk::transport::window
