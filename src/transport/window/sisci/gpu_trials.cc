#include "transport/window/sisci/gpu_trials.h"

#include "core/error.h"
#include "core/random.h"
#include "transport/window/verify.h"

namespace ropewalk::transport::window::sisci {
namespace {

// An allocation of its own, in the driver's units.
constexpr std::size_t kBufferBytes = std::size_t{2} << 20;

}  // namespace

GpuTrials::GpuTrials(DriverCuda* cuda, Regions& regions)
    : cuda_(cuda), regions_(regions), pattern_(kPatternBytes) {
  fill_random(pattern_);
}

GpuTrials::TrialMemory& GpuTrials::at(std::uint32_t location) {
  if (cuda_ == nullptr) throw Error(Errc::kInvalidArgument, "{}", "this end takes no GPU memory");
  TrialMemory& made = memories_[location];
  if (made.registration) return made;
  Gpu& gpu = cuda_->gpus.at(ordinal_of(location));
  made.buffer = std::make_unique<DeviceBuffer>(
      gpu, kBufferBytes,
      is_virtual(location) ? DeviceBuffer::From::kVirtualMemory : DeviceBuffer::From::kAllocator);
  gpu.fill(made.buffer->data(), pattern_.data(), pattern_.size());
  made.free.clear();
  for (std::size_t offset = kPatternBytes; offset < kBufferBytes; offset += kPatternBytes) {
    made.free.push_back(offset);
  }
  made.registration = regions_.add(made.buffer->pointer(), kBufferBytes, MemoryKind::kCuda);
  return made;
}

const GpuRegistration& GpuTrials::source(std::uint32_t location) {
  const Lock lock(mutex_);
  return static_cast<const GpuRegistration&>(*at(location).registration);
}

std::unique_ptr<TrialSlot> GpuTrials::take_slot(std::uint32_t location) {
  const Lock lock(mutex_);
  TrialMemory& from = at(location);
  if (from.free.empty()) {
    throw Error(Errc::kCuda, "{}", "more connections than there is GPU memory for trials");
  }
  const std::size_t offset = from.free.back();
  auto made = std::make_unique<TrialSlot>(*this, location, offset,
                                          static_cast<const GpuRegistration&>(*from.registration));
  from.free.pop_back();
  return made;
}

void GpuTrials::give_back(std::uint32_t location, std::size_t offset) {
  const Lock lock(mutex_);
  memories_[location].free.push_back(offset);
}

TrialSlot::TrialSlot(GpuTrials& owner, std::uint32_t location, std::size_t offset,
                     const GpuRegistration& memory)
    : owner_(owner), location_(location), offset_(offset), memory_(memory) {}

TrialSlot::~TrialSlot() { owner_.give_back(location_, offset_); }

void* TrialSlot::data() const noexcept {
  return reinterpret_cast<void*>(memory_.memory().data + offset_);  // NOLINT
}

void TrialSlot::clear() {
  const std::vector<std::byte> blank(kPatternBytes);
  write(blank);
  std::vector<std::byte> seen(kPatternBytes, std::byte{1});
  fetch(seen);
  if (seen != blank) {
    throw Error(Errc::kCuda,
                "copies from the host to {} and back report success and change nothing",
                memory_.memory().gpu->name());
  }
}

void TrialSlot::write(std::span<const std::byte> bytes) {
  memory_.memory().gpu->fill(memory_.memory().data + offset_, bytes.data(), bytes.size());
}

void TrialSlot::fetch(std::span<std::byte> seen) {
  memory_.memory().gpu->fetch(seen.data(), memory_.memory().data + offset_, seen.size());
}

}  // namespace ropewalk::transport::window::sisci
