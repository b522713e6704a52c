#include "transport/window/cuda_ipc/device_side.h"

#include <chrono>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/random.h"
#include "transport/window/verify.h"

namespace ropewalk::transport::window {
namespace {

const DeviceMemory& memory_of(const Registration& registration) {
  const auto* device = dynamic_cast<const DeviceRegistration*>(&registration);
  if (device == nullptr) {
    throw Error(Errc::kInvalidArgument, "{}",
                "this is not a registration of GPU memory by cuda_ipc");
  }
  return device->memory();
}

// How long a registration waits for the other end to open it.
constexpr std::chrono::milliseconds kOfferPatience{2000};

CuPointer address(const void* pointer) { return reinterpret_cast<CuPointer>(pointer); }

}  // namespace

Patterns::Patterns(Registrations& registrations, Gpus& gpus)
    : registrations_(registrations), gpus_(gpus), bytes_(kPatternBytes) {
  fill_random(bytes_);
}

const DeviceRegistration& Patterns::at(const DeviceMemory& like) {
  const Lock lock(mutex_);
  Source& source = sources_[like.location()];
  if (!source.registration) {
    source.buffer = std::make_unique<DeviceBuffer>(
        *like.gpu, bytes_.size(),
        like.virtual_memory ? DeviceBuffer::From::kVirtualMemory : DeviceBuffer::From::kAllocator);
    like.gpu->fill(source.buffer->data(), bytes_.data(), bytes_.size());
    source.registration = std::make_unique<DeviceRegistration>(
        registrations_, gpus_, source.buffer->pointer(), bytes_.size(), true);
  }
  return *source.registration;
}

void Patterns::prepare(Gpu& gpu) {
  const Lock lock(mutex_);
  (void)destination_on(gpu);
}

CuPointer Patterns::destination_on(Gpu& gpu) {
  std::unique_ptr<DeviceBuffer>& made = destinations_[&gpu];
  if (!made) {
    made = std::make_unique<DeviceBuffer>(gpu, bytes_.size(), DeviceBuffer::From::kAllocator);
    clear(gpu, made->data());  // so that what this needs is there, too
  }
  return made->data();
}

// What an earlier try left must not pass for the next one's.
void Patterns::clear(Gpu& gpu, CuPointer destination) const {
  const std::vector<std::byte> blank(bytes_.size());
  gpu.fill(destination, blank.data(), blank.size());
  std::vector<std::byte> seen(bytes_.size(), std::byte{1});
  gpu.fetch(seen.data(), destination, seen.size());
  if (seen != blank) {
    throw Error(Errc::kCuda,
                "copies from the host to {} and back report success and change nothing",
                gpu.name());
  }
}

DeviceSide::DeviceSide(CudaShared& shared, HostPath& host, WindowSizes sizes)
    : shared_(shared),
      host_(host),
      sizes_(sizes),
      queues_(kQueues, shared.connections.fetch_add(1, std::memory_order_relaxed) * 3,
              shared.copy_limit) {}

DeviceSide::~DeviceSide() {
  const Lock lock(mutex_);
  if (line_) line_->close();
  if (openings_) openings_->close();
  if (pinning_ == nullptr) return;
  try {
    const CurrentContext current(shared_.cuda, pinning_->context());
    if (own_pinned_) {
      shared_.cuda.warn(shared_.cuda.host_unregister(host_.window()), "cuMemHostUnregister");
    }
    if (other_pinned_) {
      shared_.cuda.warn(shared_.cuda.host_unregister(host_.other_window()), "cuMemHostUnregister");
    }
  } catch (const Error&) {
    // CUDA has ended before this did.
  }
}

std::uint32_t DeviceSide::location(const Registration& registration, const void* data,
                                   std::size_t bytes) const {
  const DeviceMemory& memory = memory_of(registration);
  memory.check_holds(data, bytes);
  return memory.location();
}

std::uint64_t DeviceSide::key(const Registration& registration) const {
  return memory_of(registration).key;
}

std::uint64_t DeviceSide::offset(const Registration& registration, const void* data) const {
  return address(data) - memory_of(registration).data;
}

void DeviceSide::prepare(const Registration& registration, bool receives) noexcept {
  try {
    Gpu& gpu = *memory_of(registration).gpu;
    gpu.warm_up();
    if (receives) {
      (void)pinned_own(gpu);
      shared_.patterns.prepare(gpu);
      queues_.prepare(gpu);
      const Lock lock(mutex_);
      if (host_.other_window() != nullptr) openings().expect(gpu);
    } else {
      offer_early(registration);
    }
  } catch (const Error& error) {
    log::info(log::kNet, "cuda_ipc: preparing for GPU memory: {}", error.what());
  }
}

void DeviceSide::pin(std::byte* window, std::size_t bytes, Gpu& gpu) {
  const CurrentContext current(shared_.cuda, gpu.context());
  shared_.cuda.check(shared_.cuda.host_register(window, bytes, kCuHostPortable | kCuHostDeviceMap),
                     "pinning the bounce ring (cuMemHostRegister)");
  if (pinning_ == nullptr) pinning_ = &gpu;
}

std::byte* DeviceSide::pinned_own(Gpu& gpu) {
  const Lock lock(mutex_);
  if (!own_pinned_) pin(host_.window(), sizes_.own, gpu);
  own_pinned_ = true;
  return host_.window();
}

std::byte* DeviceSide::pinned_other(Gpu& gpu) {
  const Lock lock(mutex_);
  if (!other_pinned_) pin(host_.other_window(), sizes_.other, gpu);
  other_pinned_ = true;
  return host_.other_window();
}

CopyQueue& DeviceSide::start(int queue, Gpu& gpu) {
  RW_ASSERT(slots_.at(static_cast<std::size_t>(queue)).busy == nullptr);
  return queues_.on(queue, gpu);
}

void DeviceSide::start_write(int queue, std::size_t offset, const void* source,
                             const Registration& registration, std::size_t bytes) {
  Gpu& gpu = *memory_of(registration).gpu;
  std::byte* window = pinned_other(gpu);
  CopyQueue& chosen = start(queue, gpu);
  chosen.to_host(window + offset, address(source), bytes);
  slots_.at(static_cast<std::size_t>(queue)).busy = &chosen;
}

void DeviceSide::start_read(int queue, void* destination, const Registration& registration,
                            std::size_t offset, std::size_t bytes) {
  Gpu& gpu = *memory_of(registration).gpu;
  const std::byte* window = pinned_own(gpu);
  CopyQueue& chosen = start(queue, gpu);
  chosen.to_device(address(destination), window + offset, bytes);
  slots_.at(static_cast<std::size_t>(queue)).busy = &chosen;
}

void DeviceSide::start_pull(int queue, void* destination, const Registration& registration,
                            std::uint64_t key, std::uint64_t offset, std::size_t bytes) {
  const DeviceMemory& memory = memory_of(registration);
  std::shared_ptr<const OpenedMemory> source = find_opened(key, memory.location());
  if (!source) {
    throw Error(Errc::kPeerLost, "{}", "the sender withdrew memory before it was copied");
  }
  CopyQueue& chosen = start(queue, *memory.gpu);
  chosen.on_device(address(destination), source->data() + offset, source->context(), bytes);
  Slot& slot = slots_.at(static_cast<std::size_t>(queue));
  slot.busy = &chosen;
  slot.source = std::move(source);
}

bool DeviceSide::done(int queue) {
  Slot& slot = slots_.at(static_cast<std::size_t>(queue));
  if (slot.busy != nullptr && !slot.busy->done()) return false;
  slot.busy = nullptr;
  slot.source.reset();
  return true;
}

OfferLine& DeviceSide::line() {
  if (!line_) {
    line_ = std::make_shared<OfferLine>(host_.socket());
    shared_.registrations.add_line(line_);
  }
  return *line_;
}

Openings& DeviceSide::openings() {
  if (!openings_) {
    openings_ = std::make_shared<Openings>(shared_.worker, shared_.gpus, host_.socket());
  }
  return *openings_;
}

// Also the pattern, which verifies the path of the first message.
void DeviceSide::offer_early(const Registration& registration) {
  const Registration& pattern = pattern_memory(registration);
  if (host_.other_window() == nullptr) return;
  const Lock lock(mutex_);
  std::vector<std::uint64_t> offered;
  for (const Registration* each : {&pattern, &registration}) {
    const DeviceMemory& memory = memory_of(*each);
    if (line().offer(memory) == "") offered.push_back(memory.key);
  }
  line().await(offered, kOfferPatience);
}

std::optional<std::string> DeviceSide::offer(const Registration& registration) {
  const Lock lock(mutex_);
  return line().offer(memory_of(registration));
}

bool DeviceSide::ended(std::uint64_t key) const { return shared_.registrations.ended(key); }

void DeviceSide::close_withdrawn() {
  const Lock lock(mutex_);
  if (openings_) openings_->read();
}

std::optional<std::string> DeviceSide::open(std::uint64_t key, std::uint32_t location) {
  const Lock lock(mutex_);
  return openings().open(key, ordinal_of(location));
}

std::shared_ptr<const OpenedMemory> DeviceSide::find_opened(std::uint64_t key,
                                                            std::uint32_t location) const {
  const Lock lock(mutex_);
  return openings_ ? openings_->find(key, ordinal_of(location)) : nullptr;
}

std::optional<std::uint64_t> DeviceSide::opened(std::uint64_t key, std::uint32_t location) const {
  const std::shared_ptr<const OpenedMemory> found = find_opened(key, location);
  if (!found) return std::nullopt;
  return found->bytes();
}

std::span<const std::byte> DeviceSide::pattern() const { return shared_.patterns.bytes(); }

const Registration& DeviceSide::pattern_memory(const Registration& like) {
  return shared_.patterns.at(memory_of(like));
}

void DeviceSide::write_pattern(const Registration& pattern_memory, std::size_t offset) {
  const DeviceMemory& memory = memory_of(pattern_memory);
  std::byte* window = pinned_other(*memory.gpu);
  memory.gpu->now("staging a pattern", [&](CuStream stream) {
    return shared_.cuda.copy_to_host(window + offset, memory.data, memory.bytes, stream);
  });
}

void DeviceSide::pull_pattern(std::uint64_t key, std::uint32_t location,
                              std::span<std::byte> seen) {
  const std::shared_ptr<const OpenedMemory> source = find_opened(key, location);
  if (!source || source->bytes() < seen.size()) {
    throw Error(Errc::kPeerLost, "{}", "the sender's pattern is missing");
  }
  Gpu& gpu = shared_.gpus.at(ordinal_of(location));
  shared_.patterns.try_copy(gpu, seen, [&](CuPointer destination) {
    gpu.now("pulling a pattern", [&](CuStream stream) {
      const OpenedMemory& from = *source;
      return from.context() == nullptr
                 ? shared_.cuda.copy_on_device(destination, from.data(), seen.size(), stream)
                 : shared_.cuda.copy_peer(destination, gpu.context(), from.data(), from.context(),
                                          seen.size(), stream);
    });
  });
}

void DeviceSide::read_pattern(std::size_t offset, std::uint32_t location,
                              std::span<std::byte> seen) {
  Gpu& gpu = shared_.gpus.at(ordinal_of(location));
  const std::byte* window = pinned_own(gpu);
  shared_.patterns.try_copy(gpu, seen, [&](CuPointer destination) {
    gpu.now("reading a staged pattern", [&](CuStream stream) {
      return shared_.cuda.copy_to_device(destination, window + offset, seen.size(), stream);
    });
  });
}

void DeviceSide::fetch(void* destination, const void* source, const Registration& registration,
                       std::size_t bytes) {
  memory_of(registration).gpu->fetch(destination, address(source), bytes);
}

}  // namespace ropewalk::transport::window
