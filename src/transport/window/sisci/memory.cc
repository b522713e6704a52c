#include "transport/window/sisci/memory.h"

#include <chrono>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace ropewalk::transport::window::sisci {
namespace {

constexpr std::uintptr_t kHostPage = 4096;
constexpr CuPointer kGpuPage = 64 << 10;
// What uses a segment of GPU memory ends in less.
constexpr auto kRemoveTime = std::chrono::milliseconds(500);

std::string likely_cause(const Pages& pages, Status status) {
  if (pages.kind != MemoryKind::kHost) {
    return ": the IOMMU is off, or NVIDIA's peer-memory interface (nvidia-peermem) is not loaded";
  }
  if (status == Status::kNotSupported) return ", as without an IOMMU";
  if (!out_of_space(status)) return "";
  return ", so a limit of segments or of locked memory (ulimit -l) is reached";
}

}  // namespace

std::shared_ptr<Region> Region::make(Context& context, unsigned adapter, const Pages& pages,
                                     std::string& why_not) {
  const Library& library = *context.library;
  std::shared_ptr<Region> made(new Region(context, adapter, pages));
  made->descriptor_ = OpenDescriptor::open(context);
  const char* what = "SCICreateSegment";
  Status status = create_segment(library, made->descriptor_->get(), pages.bytes,
                                 library.flags().empty, nullptr, made->segment_, made->id_);
  if (status == Status::kOk) {
    status = made->fill(what);
  } else {
    made->segment_ = nullptr;
  }
  if (status == Status::kOk) return made;
  why_not = fmt::format("{}: {}{}", what, library.words(status), likely_cause(pages, status));
  return nullptr;
}

// @param what the call that was the last
Status Region::fill(const char*& what) {
  const Library& library = *context_.library;
  Status status = Status::kUnset;
  if (pages_.kind == MemoryKind::kHost) {
    what = "SCIRegisterSegmentMemory";
    library->RegisterSegmentMemory(pages_.begin, pages_.bytes, segment_,
                                   library.flags().lock_user_memory, &status);
  } else {
    what = "SCIAttachPhysicalMemory";
    if (library->AttachPhysicalMemory == nullptr) return Status::kNotSupported;
    library->AttachPhysicalMemory(0, pages_.begin, 0, pages_.bytes, segment_,
                                  library.flags().cuda_buffer, &status);
  }
  if (status != Status::kOk) return status;
  what = "SCIPrepareSegment";
  status = Status::kUnset;
  library->PrepareSegment(segment_, adapter_, 0, &status);
  if (status != Status::kOk) return status;
  what = "SCISetSegmentAvailable";
  status = Status::kUnset;
  library->SetSegmentAvailable(segment_, adapter_, 0, &status);
  return status;
}

Region::~Region() {
  if (segment_ == nullptr) return;
  revoke();
  remove();
}

void Region::remove() {
  const CleanUpStep step = remove_segment_step(context_.library, segment_, adapter_, descriptor_);
  if (pages_.kind != MemoryKind::kHost) {
    const auto end = std::chrono::steady_clock::now() + kRemoveTime;
    while (std::chrono::steady_clock::now() < end) {
      if (step()) return;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    log::warn(
        "sisci: adapter {}: {} bytes of GPU memory at {} are not registered any more, and the "
        "adapter still has them: SCIRemoveSegment: {}; they are not to be freed yet",
        adapter_, pages_.bytes, fmt::ptr(pages_.begin), context_.library->words(Status::kBusy));
  }
  context_.clean_up.add({step});
}

bool Region::holds(const void* data, std::size_t bytes) const noexcept {
  const auto* from = static_cast<const std::byte*>(data);
  return from >= pages_.begin && bytes <= pages_.bytes &&
         static_cast<std::size_t>(from - pages_.begin) <= pages_.bytes - bytes;
}

// Other memory may have come to the same addresses: of the host the pages stay locked, of a GPU the
// allocation's number differs.
bool Region::holds(const Pages& pages) const noexcept {
  return pages.kind == pages_.kind && pages.allocation == pages_.allocation &&
         holds(pages.begin, pages.bytes);
}

void Region::revoke() {
  if (revoked_.exchange(true)) return;
  Status status = Status::kUnset;
  (*context_.library)
      ->SetSegmentUnavailable(segment_, adapter_, context_.library->flags().force_disconnect,
                              &status);
  if (status != Status::kOk) {
    log::warn("sisci: SCISetSegmentUnavailable: {}", context_.library->words(status));
  }
}

std::unique_ptr<Registration> Regions::add(void* data, std::size_t bytes, MemoryKind kind) {
  context_.clean_up.sweep();
  if (kind == MemoryKind::kCuda && cuda_ != nullptr) return add_gpu(data, bytes);
  if (kind != MemoryKind::kHost) {
    throw Error(Errc::kInvalidArgument, "sisci: this device takes host memory only");
  }
  if (data == nullptr && bytes > 0) {
    throw Error(Errc::kInvalidArgument, "registration of {} bytes at a null pointer", bytes);
  }
  if (bytes == 0) return std::make_unique<SisciRegistration>(nullptr);
  const std::size_t before = reinterpret_cast<std::uintptr_t>(data) % kHostPage;
  const Pages pages{MemoryKind::kHost, static_cast<std::byte*>(data) - before,
                    (before + bytes + kHostPage - 1) / kHostPage * kHostPage, 0};
  std::string why_not;
  std::shared_ptr<Region> region = find_or_make(pages, why_not);
  if (!region) {
    const Lock lock(mutex_);
    if (!std::exchange(said_why_not_, true)) {
      log::warn("sisci: adapter {}: memory cannot be registered: {}; messages go through windows",
                adapter_, why_not);
    }
  }
  return std::make_unique<SisciRegistration>(std::move(region));
}

std::unique_ptr<Registration> Regions::add_gpu(void* data, std::size_t bytes) {
  GpuMemory memory = find_gpu_memory(cuda_->gpus, data, bytes);
  try {
    memory.gpu->warm_up();  // all that is staged is copied so, and any message may have to be
  } catch (const Error& error) {
    throw Error(Errc::kInvalidArgument,
                "sisci: memory of {} is not taken, since nothing is copied between it and the "
                "host: {}",
                memory.gpu->name(), error.what());
  }
  std::string why_not;
  std::shared_ptr<Region> region = attach(memory, why_not);
  if (!region) {
    log::info(log::kNet, "sisci: adapter {}: {} bytes of {} are staged: {}", adapter_, bytes,
              memory.gpu->name(), why_not);
  }
  return std::make_unique<GpuRegistration>(std::move(memory), std::move(region));
}

std::shared_ptr<Region> Regions::attach(const GpuMemory& memory, std::string& why_not) {
  if (memory.allocations.size() != 1) {
    why_not = "they span several allocations";
    return nullptr;
  }
  const CudaApi& cuda = cuda_->cuda;
  const Allocation& allocation = memory.allocations.front();
  const CuPointer begin = (allocation.base + kGpuPage - 1) / kGpuPage * kGpuPage;
  const CuPointer end = (allocation.base + allocation.bytes) / kGpuPage * kGpuPage;
  if (begin >= end) {
    why_not = "their allocation has no page of 64 KiB to itself";
    return nullptr;
  }
  const CurrentContext current(cuda, memory.gpu->context());
  // Copies that CUDA calls synchronous are so for this memory: what other devices see is complete.
  const unsigned yes = 1;
  const CuResult set =
      cuda.set_pointer_attribute == nullptr
          ? kCuNotSupported
          : cuda.set_pointer_attribute(&yes, kCuPointerSyncMemops, allocation.base);
  const auto warn = [&] {
    context_.warn_once(
        fmt::format("sisci: adapter {}: GPU memory cannot be attached: {}; messages from and to it "
                    "are staged through host memory",
                    adapter_, why_not));
  };
  if (set != kCuSuccess) {
    why_not = "setting SYNC_MEMOPS: " + cuda.words(set);
    warn();
    return nullptr;
  }
  Pages pages{MemoryKind::kCuda, reinterpret_cast<std::byte*>(begin),  // NOLINT
              static_cast<std::size_t>(end - begin), 0};
  if (cuda.pointer_attribute(&pages.allocation, kCuPointerBufferId, allocation.base) !=
      kCuSuccess) {
    pages.allocation = 0;
  }
  std::shared_ptr<Region> region = find_or_make(pages, why_not);
  if (!region) warn();
  return region;
}

std::shared_ptr<Region> Regions::find_or_make(const Pages& pages, std::string& why_not) {
  const Lock lock(mutex_);
  std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  for (const auto& [start, known] : known_) {
    if (start > pages.begin) break;
    std::shared_ptr<Region> region = known.lock();
    if (region && !region->revoked() && region->holds(pages)) return region;
  }
  std::shared_ptr<Region> region = Region::make(context_, adapter_, pages, why_not);
  if (region) known_.emplace(pages.begin, region);
  return region;
}

}  // namespace ropewalk::transport::window::sisci
