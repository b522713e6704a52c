#include "transport/window/cuda_ipc/device_memory.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.h"
#include "transport/window/cuda_ipc/offers.h"

namespace ropewalk::transport::window {
namespace {

// Closes what a call of virtual-memory management gave.
class Retained {
 public:
  Retained(const CudaApi& cuda, CuPointer address) : cuda_(cuda) {
    void* pointer = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
    held_ = cuda.has_virtual_memory() && cuda.retain_allocation(&handle_, pointer) == kCuSuccess;
  }
  ~Retained() {
    if (held_) cuda_.release_allocation(handle_);
  }
  Retained(const Retained&) = delete;
  Retained& operator=(const Retained&) = delete;
  [[nodiscard]] bool held() const noexcept { return held_; }
  [[nodiscard]] CuAllocation handle() const noexcept { return handle_; }

 private:
  const CudaApi& cuda_;
  CuAllocation handle_ = 0;
  bool held_ = false;
};

std::string export_segment(const CudaApi& cuda, const Retained& retained, Segment& segment) {
  if (!retained.held()) {
    const CuResult result = cuda.ipc_export(&segment.handle, segment.base);
    return result == kCuSuccess ? "" : "cuIpcGetMemHandle: " + cuda.words(result);
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
  DeviceMemory memory;
  memory.key = key;
  memory.data = reinterpret_cast<CuPointer>(data);
  memory.bytes = bytes;
  if (data == nullptr) {
    throw Error(Errc::kInvalidArgument, "registration of {} bytes at a null pointer", bytes);
  }
  if (gpus.count() == 0) throw Error(Errc::kInvalidArgument, "{}", "there is no GPU");
  const CudaApi& cuda = gpus.cuda();
  unsigned type = 0;
  int ordinal = -1;
  CuResult known = cuda.pointer_attribute(&type, kCuPointerMemoryType, memory.data);
  std::optional<CurrentContext> any;  // where a thread without a context may not ask
  if (known == kCuInvalidContext) {
    any.emplace(cuda, gpus.at(0).context());
    known = cuda.pointer_attribute(&type, kCuPointerMemoryType, memory.data);
  }
  if (known != kCuSuccess || type != kCuMemoryIsDevice ||
      cuda.pointer_attribute(&ordinal, kCuPointerOrdinal, memory.data) != kCuSuccess) {
    throw Error(Errc::kInvalidArgument, "registration of {} bytes at {}: this is no GPU memory",
                bytes, data);
  }
  Gpu& gpu = gpus.at(ordinal);
  memory.gpu = &gpu;
  CuContext owner = nullptr;  // none has virtual memory
  if (cuda.pointer_attribute(&owner, kCuPointerContext, memory.data) == kCuSuccess &&
      owner != nullptr && owner != gpu.context()) {
    throw Error(Errc::kInvalidArgument,
                "registration of {} bytes at {}: it belongs to a CUDA context which is not the "
                "primary one of {}",
                bytes, data, gpu.name());
  }
  const CurrentContext current(cuda, gpu.context());
  const CuPointer end = memory.data + std::max(bytes, std::size_t{1});
  for (CuPointer at = memory.data; at < end;) {
    Segment segment;
    const Retained retained(cuda, at);
    if (cuda.address_range(&segment.base, &segment.bytes, at) != kCuSuccess || segment.bytes == 0 ||
        (at != memory.data && retained.held() != memory.virtual_memory) ||
        (at != memory.data && !retained.held())) {
      throw Error(Errc::kInvalidArgument,
                  "registration of {} bytes at {}: only {} of them are there", bytes, data,
                  at - memory.data);
    }
    memory.virtual_memory = retained.held();
    if (memory.why_not_offered.empty()) {
      memory.why_not_offered = export_segment(cuda, retained, segment);
    }
    if (memory.segments.size() == kMaxSegments) memory.why_not_offered = "it has too many parts";
    at = segment.base + segment.bytes;
    if (memory.segments.size() < kMaxSegments) memory.segments.push_back(std::move(segment));
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
