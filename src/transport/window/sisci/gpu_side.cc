#include "transport/window/sisci/gpu_side.h"

#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "transport/window/mailbox.h"
#include "transport/window/verify.h"

namespace ropewalk::transport::window::sisci {
namespace {

const GpuMemory& memory_of(const Registration& registration) {
  const auto* gpu = dynamic_cast<const GpuRegistration*>(&registration);
  if (gpu == nullptr) {
    throw Error(Errc::kInvalidArgument, "{}", "this is not a registration of GPU memory by sisci");
  }
  return gpu->memory();
}

CuPointer address(const void* pointer) { return reinterpret_cast<CuPointer>(pointer); }

std::size_t next_streams(DriverCuda* cuda) {
  return cuda == nullptr ? 0 : cuda->connections.fetch_add(1, std::memory_order_relaxed) * 3;
}

}  // namespace

GpuSide::GpuSide(DriverCuda* cuda, GpuTrials& trials, Path& path, int first_queue)
    : cuda_(cuda),
      trials_(trials),
      path_(path),
      first_queue_(first_queue),
      queues_(kQueues, next_streams(cuda),
              cuda == nullptr ? std::chrono::nanoseconds(0) : cuda->copy_limit) {}

void GpuSide::prepare(const Registration& registration, bool receives) noexcept {
  try {
    const GpuMemory& memory = memory_of(registration);
    queues_.prepare(*memory.gpu);
    (void)staging(0, *memory.gpu);
    if (receives) {
      (void)slot(memory.location());
    } else {
      (void)trials_.source(memory.location());
    }
  } catch (const Error& error) {
    log::info(log::kNet, "sisci: preparing for GPU memory: {}", error.what());
  }
}

std::uint32_t GpuSide::location(const Registration& registration, const void* data,
                                std::size_t bytes) const {
  const GpuMemory& memory = memory_of(registration);
  memory.check_holds(data, bytes);
  return memory.location();
}

std::byte* GpuSide::staging(int queue, Gpu& gpu) {
  const Lock lock(mutex_);
  if (!staging_) staging_ = std::make_unique<PinnedBuffer>(gpu, kQueues * kBouncePieceBytes);
  return staging_->data() + static_cast<std::size_t>(queue) * kBouncePieceBytes;
}

TrialSlot& GpuSide::slot(std::uint32_t location) {
  const Lock lock(mutex_);
  std::unique_ptr<TrialSlot>& made = trial_slots_[location];
  if (!made) made = trials_.take_slot(location);
  return *made;
}

void GpuSide::start_write(int queue, std::size_t offset, const void* source,
                          const Registration& registration, std::size_t bytes) {
  Gpu& gpu = *memory_of(registration).gpu;
  Slot& slot = slots_.at(static_cast<std::size_t>(queue));
  std::byte* const pinned = staging(queue, gpu);
  CopyQueue& chosen = queues_.on(queue, gpu);
  chosen.to_host(pinned, address(source), bytes);
  slot = {&chosen, offset, bytes, false};
}

void GpuSide::start_read(int queue, void* destination, const Registration& registration,
                         std::size_t offset, std::size_t bytes) {
  Gpu& gpu = *memory_of(registration).gpu;
  Slot& slot = slots_.at(static_cast<std::size_t>(queue));
  std::byte* const pinned = staging(queue, gpu);
  CopyQueue& chosen = queues_.on(queue, gpu);
  std::memcpy(pinned, path_.window() + offset, bytes);
  chosen.to_device(address(destination), pinned, bytes);
  slot = {&chosen, std::nullopt, bytes, false};
}

bool GpuSide::done(int queue) {
  Slot& slot = slots_.at(static_cast<std::size_t>(queue));
  const int sends = first_queue_ + queue;
  if (slot.copying != nullptr) {
    if (!slot.copying->done()) return false;
    Gpu& gpu = std::exchange(slot.copying, nullptr)->gpu();
    if (slot.offset) {
      slot.sending = true;
      path_.start_write(sends, *slot.offset, staging(queue, gpu), slot.bytes);
    }
  }
  if (slot.sending && !path_.copy_done(sends)) return false;
  slot = {};
  return true;
}

const Registration& GpuSide::pattern_memory(const Registration& like) {
  return trials_.source(memory_of(like).location());
}

void GpuSide::write_pattern(const Registration& pattern_memory, std::size_t offset) {
  const GpuMemory& memory = memory_of(pattern_memory);
  std::vector<std::byte> bytes(kPatternBytes);
  memory.gpu->fetch(bytes.data(), memory.data, bytes.size());
  path_.put(offset, bytes.data(), bytes.size());
}

void GpuSide::read_pattern(std::size_t offset, std::uint32_t location, std::span<std::byte> seen) {
  TrialSlot& to = slot(location);
  to.clear();
  to.write({path_.window() + offset, seen.size()});
  to.fetch(seen);
}

void GpuSide::fetch(void* destination, const void* source, const Registration& registration,
                    std::size_t bytes) {
  memory_of(registration).gpu->fetch(destination, address(source), bytes);
}

}  // namespace ropewalk::transport::window::sisci
