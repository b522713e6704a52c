// Registered memory of the other end, of the host and of GPUs: writes into it, and their trials.
#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "transport/window/sisci/path.h"
#include "transport/window/verify.h"

namespace ropewalk::transport::window::sisci {
namespace {

using Clock = std::chrono::steady_clock;

// Large enough to hide the start of a transfer, small enough for all queues to have work.
constexpr std::size_t kDirectPieceBytes = 512 << 10;
constexpr std::size_t kMaxReached = 128;
constexpr auto kTrialTime = std::chrono::seconds(10);

// A target's region: a segment id, and above it the methods to write it.
constexpr unsigned kUsableShift = 32;
std::uint32_t id_of(const Target& target) { return static_cast<std::uint32_t>(target.region); }
unsigned usable_of(const Target& target) {
  return static_cast<unsigned>(target.region >> kUsableShift);
}
Target make_target(const Region& region, unsigned usable, std::size_t offset) {
  return {region.id() | std::uint64_t{usable} << kUsableShift, offset};
}

const SisciRegistration* ours(const Registration* registration) {
  return dynamic_cast<const SisciRegistration*>(registration);
}

bool on_gpu(const Registration* registration) {
  return registration != nullptr && registration->kind() == MemoryKind::kCuda;
}

const char* memory_of(std::uint64_t location) {
  return location == 0 ? "host memory" : "GPU memory";
}

constexpr const char* kGpuCause =
    "the IOMMU is off or broken, PCIe access control services turn the transfers away, or NVIDIA's "
    "peer-memory interface (nvidia-peermem) is not loaded";

}  // namespace

std::size_t SisciPath::direct_piece_bytes() const { return kDirectPieceBytes; }

// From where memory at a location of this end may be written. Before the trials of host memory are
// judged, GPU memory may be written from GPU memory alone, and host memory not at all.
unsigned SisciPath::usable_at(std::uint32_t location) {
  const unsigned usable = judge_trial();
  if (location != 0) return usable | kFromGpu | kIntoGpu;
  return usable == 0 ? 0 : usable | kFromGpu;
}

Target SisciPath::target_of(const void* data, std::size_t bytes, const Registration& registration) {
  const SisciRegistration* const mine = ours(&registration);
  if (mine == nullptr || !mine->region() || mine->region()->revoked() ||
      !mine->region()->holds(data, bytes)) {
    return {};
  }
  const unsigned usable = usable_at(on_gpu(&registration) ? 1 : 0);
  if (usable == 0) return {};
  return make_target(*mine->region(), usable, mine->region()->offset(data));
}

std::shared_ptr<const RemoteRegion> SisciPath::reached(std::uint32_t id) {
  auto found = std::find_if(reached_.begin(), reached_.end(),
                            [&](const Reached& entry) { return entry.id == id; });
  if (found == reached_.end() || (found->region && found->region->lost())) {
    std::erase_if(reached_,
                  [](const Reached& entry) { return entry.region && entry.region->lost(); });
    Status status = Status::kUnset;
    Reached made{
        id, RemoteRegion::connect(context_, descriptor_, options_.adapter, peer_node_, id, status)};
    if (!made.region) {
      context_.warn_once(fmt::format("{}: its registered memory cannot be connected: {}", to_peer(),
                                     context_.library->words(status)));
    }
    reached_.push_front(std::move(made));
    // Transfers may be using the latest ones, at most one for each queue.
    if (reached_.size() > kMaxReached) reached_.pop_back();
  } else {
    reached_.splice(reached_.begin(), reached_, found);
  }
  return reached_.front().region;
}

bool SisciPath::reach(const Target& target, const void* source, std::size_t bytes,
                      const Registration* registration) {
  if (!use_dma_ || target.region == 0) return false;
  if (!std::all_of(copies_.begin(), copies_.end(),
                   [](const Copy& copy) { return copy.queue != nullptr; })) {
    return false;
  }
  const SisciRegistration* const mine = ours(registration);
  const unsigned usable = usable_of(target);
  if (on_gpu(registration)) {
    if ((usable & kFromGpu) == 0 || mine == nullptr || !mine->region() ||
        mine->region()->revoked() || !mine->region()->holds(source, bytes)) {
      return false;
    }
  } else {
    const bool registered = mine != nullptr && mine->region() && (usable & kFromRegistered) != 0;
    // GPU memory is written as it was tried: from registered memory where that works.
    const bool plain =
        (usable & kFromPlain) != 0 && ((usable & kIntoGpu) == 0 || (usable & kFromRegistered) == 0);
    if (!registered && !plain) return false;
  }
  if (!aligned(static_cast<std::size_t>(target.offset), source, bytes)) return false;
  if ((usable & kIntoGpu) != 0 && options_.alignment > kReadBackLine) return false;
  return reached(id_of(target)) != nullptr;
}

void SisciPath::start_direct(int queue, const Target& target, const void* source,
                             const Registration* registration, std::size_t bytes) {
  const std::string why_not = post_direct(queue, target, source, registration, bytes);
  if (why_not.empty()) return;
  throw Error(Errc::kPeerLost, "{}: DMA into its registered memory cannot start: {}", to_peer(),
              why_not);
}

// @return why not, empty for success
std::string SisciPath::post_direct(int queue, const Target& target, const void* source,
                                   const Registration* registration, std::size_t bytes) {
  Copy& copy = copies_[static_cast<std::size_t>(queue)];
  std::shared_ptr<const RemoteRegion> region = reached(id_of(target));
  if (!region) return "it is not connected any more";
  if (!copy.queue) return "there is no DMA queue left";
  const SisciRegistration* const mine = ours(registration);
  const bool registered = mine != nullptr && mine->region() &&
                          mine->region()->holds(source, bytes) &&
                          (on_gpu(registration) || (usable_of(target) & kFromRegistered) != 0);
  const auto offset = static_cast<std::size_t>(target.offset);
  const Status status =
      registered ? copy.queue->start(mine->region()->segment(), mine->region()->offset(source),
                                     region->get(), offset, bytes)
                 : copy.queue->start(source, region->get(), offset, bytes);
  if (status != Status::kOk) return context_.library->words(status);
  copy.posted = true;
  copy.direct = true;
  if ((usable_of(target) & kIntoGpu) != 0) {
    copy.read_back = std::move(region);
    copy.read_back_bytes = std::min(bytes, read_back_bytes());
    copy.read_back_offset = offset + bytes - copy.read_back_bytes;
  }
  return "";
}

// Few, but enough to distinguish patterns.
std::size_t SisciPath::read_back_bytes() const {
  return std::max(options_.alignment, sizeof(std::uint64_t));
}

std::byte* SisciPath::read_back_line(int queue) const {
  return own_->data() + kReadBackOffset + static_cast<std::size_t>(queue) * kReadBackLine;
}

// @return whether there is something to read back
bool SisciPath::start_read_back(int queue, Copy& copy) {
  const std::shared_ptr<const RemoteRegion> from = std::exchange(copy.read_back, nullptr);
  if (!from) return false;
  const Status status = copy.queue->start_read(
      own_->first_segment(), static_cast<std::size_t>(read_back_line(queue) - own_->data()),
      from->get(), copy.read_back_offset, copy.read_back_bytes);
  if (status != Status::kOk) {
    throw Error(Errc::kPeerLost, "{}: reading back from its GPU memory cannot start: {}", to_peer(),
                context_.library->words(status));
  }
  copy.posted = true;
  return true;
}

void SisciPath::revoke(Registration& registration) {
  const SisciRegistration* const mine = ours(&registration);
  if (mine != nullptr && mine->region()) mine->region()->revoke();
}

// ---- trials --------------------------------------------------------------------------------

Target SisciPath::trial_target(std::uint64_t locations) {
  const auto location = static_cast<std::uint32_t>(locations);
  const unsigned usable = usable_at(location);
  try {
    if (location != 0) {
      TrialSlot& slot = gpu_side_.slot(location);
      const Region* const region = slot.memory().region().get();
      if (region == nullptr || !region->holds(slot.data(), kPatternBytes)) return {};
      slot.clear();
      return make_target(*region, usable, region->offset(slot.data()));
    }
    if (usable == 0) return {};
    host_trial_ = std::make_unique<Trial>(memory_.regions);
    if (host_trial_->region() == nullptr) return {};
    return make_target(*host_trial_->region(), usable, 0);
  } catch (const Error& error) {
    log::info(log::kNet, "{}: no memory for a trial: {}", to_peer(), error.what());
    return {};
  }
}

std::string SisciPath::try_direct(int queue, const Target& target, std::uint64_t locations) {
  const auto location = static_cast<std::uint32_t>(locations >> 32);
  try {
    if (location != 0) {
      const GpuRegistration& from = memory_.trials.source(location);
      // NOLINTNEXTLINE(performance-no-int-to-ptr)
      return try_direct_from(queue, target, reinterpret_cast<void*>(from.memory().data), from);
    }
    const Trial from(memory_.regions);
    const std::span<const std::byte> pattern = memory_.trials.pattern();
    std::memcpy(from.page(kFromRegistered).data(), pattern.data(), pattern.size());
    return try_direct_from(queue, target, from.page(kFromRegistered).data(), from.registration());
  } catch (const Error& error) {
    return error.what();
  }
}

std::string SisciPath::try_direct_from(int queue, const Target& target, const void* data,
                                       const Registration& registration) {
  const std::span<const std::byte> pattern = memory_.trials.pattern();
  if (!reach(target, data, pattern.size(), &registration)) {
    return "a pattern's memory is not attached, or cannot be connected";
  }
  std::byte* const line = read_back_line(queue);
  std::memset(line, 0, kReadBackLine);
  const std::string why_not = post_direct(queue, target, data, &registration, pattern.size());
  if (!why_not.empty()) return "it cannot start: " + why_not;
  const Clock::time_point end = Clock::now() + kTrialTime;
  while (!copy_done(queue)) {
    if (Clock::now() > end) {
      Copy& copy = copies_[static_cast<std::size_t>(queue)];
      copy.posted = false;
      Status status = Status::kUnset;
      copy.queue = Queue::create(context_, descriptor_, options_.adapter, status);
      return "a transfer does not end";
    }
    std::this_thread::yield();
  }
  const std::size_t tail = read_back_bytes();
  if ((usable_of(target) & kIntoGpu) != 0 &&
      std::memcmp(line, pattern.data() + pattern.size() - tail, tail) != 0) {
    return "transfers report success, but a pattern cannot be read back";
  }
  return "";
}

void SisciPath::fetch_trial(std::uint64_t locations, std::span<std::byte> seen) {
  const auto location = static_cast<std::uint32_t>(locations);
  if (location != 0) return gpu_side_.slot(location).fetch(seen);
  if (!host_trial_) throw Error(Errc::kPeerLost, "{}", "no memory was named for this pattern");
  std::memcpy(seen.data(), host_trial_->page(kFromRegistered).data(), seen.size());
  host_trial_.reset();
}

void SisciPath::tried(std::uint64_t locations, const std::string& why_not) {
  const std::string copies =
      fmt::format("{}: DMA from {} into {}", to_peer(), memory_of(locations >> 32),
                  memory_of(static_cast<std::uint32_t>(locations)));
  if (why_not.empty()) {
    log::info(log::kNet, "{} is used", copies);
  } else {
    context_.warn_once(fmt::format("{}: {}: {}; messages are staged through host memory", copies,
                                   why_not, kGpuCause));
  }
}

}  // namespace ropewalk::transport::window::sisci
