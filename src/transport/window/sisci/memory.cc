#include "transport/window/sisci/memory.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace ropewalk::transport::window::sisci {
namespace {

constexpr std::uintptr_t kHostPage = 4096;

}  // namespace

std::shared_ptr<Region> Region::make(Context& context, unsigned adapter, std::byte* begin,
                                     std::size_t bytes, std::string& why_not) {
  const Library& library = *context.library;
  std::shared_ptr<Region> made(new Region(context, adapter, begin, bytes));
  made->descriptor_ = OpenDescriptor::open(context);
  const char* what = "SCICreateSegment";
  Status status = create_segment(library, made->descriptor_->get(), bytes, library.flags().empty,
                                 nullptr, made->segment_, made->id_);
  if (status == Status::kOk) {
    status = Status::kUnset;
    what = "SCIRegisterSegmentMemory";
    library->RegisterSegmentMemory(begin, bytes, made->segment_, library.flags().lock_user_memory,
                                   &status);
    if (status == Status::kOk) {
      what = "SCIPrepareSegment";
      status = Status::kUnset;
      library->PrepareSegment(made->segment_, adapter, 0, &status);
    }
    if (status == Status::kOk) {
      what = "SCISetSegmentAvailable";
      status = Status::kUnset;
      library->SetSegmentAvailable(made->segment_, adapter, 0, &status);
    }
  } else {
    made->segment_ = nullptr;
  }
  if (status == Status::kOk) return made;
  why_not = fmt::format("{}: {}{}", what, library.words(status),
                        status == Status::kNotSupported
                            ? ", as without an IOMMU"
                            : (out_of_space(status) ? ", so a limit is reached: of segments, or of "
                                                      "locked memory (ulimit -l)"
                                                    : ""));
  return nullptr;
}

Region::~Region() {
  if (segment_ == nullptr) return;
  revoke();
  context_.clean_up.add({remove_segment_step(context_.library, segment_, adapter_, descriptor_)});
}

bool Region::holds(const void* data, std::size_t bytes) const noexcept {
  const auto* from = static_cast<const std::byte*>(data);
  return from >= begin_ && bytes <= bytes_ &&
         static_cast<std::size_t>(from - begin_) <= bytes_ - bytes;
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
  if (kind != MemoryKind::kHost) {
    throw Error(Errc::kInvalidArgument, "sisci: this device takes host memory only");
  }
  if (data == nullptr && bytes > 0) {
    throw Error(Errc::kInvalidArgument, "registration of {} bytes at a null pointer", bytes);
  }
  if (bytes == 0) return std::make_unique<SisciRegistration>(nullptr);
  const std::size_t before = reinterpret_cast<std::uintptr_t>(data) % kHostPage;
  return std::make_unique<SisciRegistration>(
      find_or_make(static_cast<std::byte*>(data) - before,
                   (before + bytes + kHostPage - 1) / kHostPage * kHostPage));
}

std::shared_ptr<Region> Regions::find_or_make(std::byte* begin, std::size_t bytes) {
  std::string why_not;
  const Lock lock(mutex_);
  std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  for (const auto& [start, known] : known_) {
    if (start > begin) break;
    std::shared_ptr<Region> region = known.lock();
    if (region && !region->revoked() && region->holds(begin, bytes)) return region;
  }
  std::shared_ptr<Region> region = Region::make(context_, adapter_, begin, bytes, why_not);
  if (region) {
    known_.emplace(begin, region);
  } else if (!std::exchange(said_why_not_, true)) {
    log::warn("sisci: adapter {}: memory cannot be registered: {}; messages go through windows",
              adapter_, why_not);
  }
  return region;
}

}  // namespace ropewalk::transport::window::sisci
