#include "message/kernel_calls.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include "core/log.h"
#include "message/window.h"

namespace ropewalk::message {

namespace gpus = transport::window;

namespace {

constexpr std::uint32_t kEntries = 1024;
// Those of ropewalk::device::Status and Request in device.cuh.
constexpr std::uint32_t kTimedOut = 2;
constexpr std::uint64_t kAsksPut = 0;
constexpr std::uint64_t kAsksGet = 1;
constexpr std::uint64_t kAsksSignal = 2;
constexpr std::uint64_t kMostInline = 8;
constexpr std::uint64_t kPayload = (std::uint64_t{1} << 56U) - 1;

std::uint64_t address_of(const void* memory) noexcept {
  return reinterpret_cast<std::uint64_t>(memory);
}

}  // namespace

struct KernelCalls::Shared {
  rwDeviceEntry entries[kEntries];
  alignas(64) rwDeviceControl control;
  alignas(64) std::uint64_t done;
};

struct KernelCalls::Tables {
  Window* window = nullptr;
  std::vector<std::uint64_t> counts;  // the host's when it was made: sent, then awaited
  void* memory = nullptr;
  rwDeviceWindow handle{};
};

KernelCalls::KernelCalls(gpus::Gpu* gpu) : gpu_(gpu) {
  if (gpu_ == nullptr) {
    memory_ = ::operator new (sizeof(Shared), std::align_val_t{alignof(Shared)});
  } else {
    const gpus::CudaApi& cuda = gpu_->cuda();
    const gpus::CurrentContext current(cuda, gpu_->context());
    cuda.check(cuda.host_allocate(&memory_, sizeof(Shared),
                                  gpus::kCuHostPortable | gpus::kCuHostDeviceMap),
               "cuMemHostAlloc");
    gpus::CuPointer device = 0;
    cuda.check(cuda.host_pointer(&device, memory_, 0), "cuMemHostGetDevicePointer");
    shift_ = device - address_of(memory_);
  }
  std::memset(memory_, 0, sizeof(Shared));
  shared_ = static_cast<Shared*>(memory_);
  heads_ = static_cast<std::uint64_t*>(take(2 * sizeof(std::uint64_t)));
}

KernelCalls::~KernelCalls() {
  // Both wait for the kernels that use it.
  for (const auto& [number, tables] : tables_) give(tables->memory);
  give(heads_);
  if (gpu_ == nullptr) {
    ::operator delete (memory_, std::align_val_t{alignof(Shared)});
    return;
  }
  try {
    const gpus::CurrentContext current(gpu_->cuda(), gpu_->context());
    gpu_->cuda().warn(gpu_->cuda().host_free(memory_), "cuMemFreeHost");
  } catch (const Error&) {
    // CUDA has ended before this did.
  }
}

// Zeroed memory near the threads that use it.
void* KernelCalls::take(std::size_t bytes) {
  const std::vector<std::byte> zeros(bytes);
  if (gpu_ == nullptr) {
    void* made = ::operator new (bytes, std::align_val_t{64});
    std::memcpy(made, zeros.data(), bytes);
    return made;
  }
  const gpus::CurrentContext current(gpu_->cuda(), gpu_->context());
  gpus::CuPointer made = 0;
  gpu_->cuda().check(gpu_->cuda().allocate(&made, bytes), "cuMemAlloc");
  gpu_->fill(made, zeros.data(), bytes);
  return reinterpret_cast<void*>(made);  // NOLINT(performance-no-int-to-ptr)
}

void KernelCalls::give(void* memory) noexcept {
  if (memory == nullptr) return;
  if (gpu_ == nullptr) {
    ::operator delete (memory, std::align_val_t{64});
    return;
  }
  try {
    const gpus::CurrentContext current(gpu_->cuda(), gpu_->context());
    gpu_->cuda().warn(gpu_->cuda().free(address_of(memory)), "cuMemFree");
  } catch (const Error&) {
    // CUDA has ended before this did, and the memory with it.
  }
}

// ---- handles ------------------------------------------------------------------------------

const rwDeviceWindow& KernelCalls::handle(Window& window, std::chrono::nanoseconds timeout) {
  std::unique_ptr<Tables>& known = tables_[window.number()];
  if (known != nullptr) return known->handle;
  auto made = std::make_unique<Tables>();
  made->window = &window;
  const auto n = static_cast<std::size_t>(window.size());
  const std::size_t counters = n * static_cast<std::size_t>(window.slots());
  std::vector<rwDevicePart> parts(n);
  bool needs_links = false;
  for (std::size_t r = 0; r < n; ++r) {
    const Part& part = window.part(static_cast<int>(r));
    rwDevicePart& given = parts[r];
    given.bytes = part.bytes;
    if (counters > 0) given.arrived = window.arrivals(static_cast<int>(r));
    if (!part.mapped) {
      needs_links = true;
      continue;
    }
    given.data = reinterpret_cast<unsigned char*>(part.data);
    if (counters == 0) continue;
    if (gpu_ == nullptr) {
      given.signals = &part.signals->count;
    } else {
      given.signals = &part.device_signals->count;
      given.host_signals = &part.signals_on_device->count;
    }
  }
  std::vector<std::uint64_t> counts(2 * counters);
  for (std::size_t r = 0; r < n; ++r) {
    for (int slot = 0; slot < window.slots(); ++slot) {
      const std::size_t k =
          r * static_cast<std::size_t>(window.slots()) + static_cast<std::size_t>(slot);
      counts[k] = window.sent(static_cast<int>(r), slot);
      counts[counters + k] = window.awaited(static_cast<int>(r), slot);
    }
  }
  const std::size_t parts_bytes = n * sizeof(rwDevicePart);
  const std::size_t counts_bytes = counts.size() * sizeof(std::uint64_t);
  const KernelQueues* queues = window.queues();
  const std::size_t num_queues = queues == nullptr ? 0 : counters;
  const std::size_t queues_bytes = num_queues * sizeof(rwDeviceQueue);
  std::vector<std::byte> image(parts_bytes + counts_bytes + queues_bytes +
                               num_queues * sizeof(rwDeviceQueueCounts));
  std::memcpy(image.data(), parts.data(), parts_bytes);
  std::memcpy(image.data() + parts_bytes, counts.data(), counts_bytes);
  if (queues != nullptr) {
    needs_links |= queues->carried();
    std::byte* const at = image.data() + parts_bytes + counts_bytes;
    std::memcpy(at, queues->queues().data(), queues_bytes);
    const std::vector<rwDeviceQueueCounts> begin(num_queues, {0, queues->lines(), 0, 0});
    std::memcpy(at + queues_bytes, begin.data(), num_queues * sizeof(rwDeviceQueueCounts));
  }
  made->memory = take(image.size());
  if (gpu_ == nullptr) {
    std::memcpy(made->memory, image.data(), image.size());
  } else {
    gpu_->fill(address_of(made->memory), image.data(), image.size());
  }
  rwDeviceWindow& handle = made->handle;
  auto* const base = static_cast<std::byte*>(made->memory);
  handle.parts = reinterpret_cast<rwDevicePart*>(base);
  handle.sent = reinterpret_cast<std::uint64_t*>(base + parts_bytes);
  handle.awaited = handle.sent + counters;
  if (queues != nullptr) {
    handle.queues = reinterpret_cast<rwDeviceQueue*>(base + parts_bytes + counts_bytes);
    handle.queue_counts =
        reinterpret_cast<rwDeviceQueueCounts*>(base + parts_bytes + counts_bytes + queues_bytes);
    handle.log2_lines = static_cast<std::uint32_t>(std::countr_zero(queues->lines()));
  }
  // NOLINTBEGIN(performance-no-int-to-ptr): addresses of the GPU
  handle.control = reinterpret_cast<rwDeviceControl*>(address_of(&shared_->control) + shift_);
  handle.timeout_ns = static_cast<std::uint64_t>(timeout.count());
  handle.number = window.number();
  handle.rank = window.rank();
  handle.size = window.size();
  handle.slots = window.slots();
  if (needs_links) {
    handle.entries = reinterpret_cast<rwDeviceEntry*>(address_of(shared_->entries) + shift_);
    handle.done = reinterpret_cast<std::uint64_t*>(address_of(&shared_->done) + shift_);
    handle.head = heads_;
    handle.done_seen = heads_ + 1;
    handle.num_entries = kEntries;
    needs_links_ = true;
  }
  // NOLINTEND(performance-no-int-to-ptr)
  made->counts = std::move(counts);
  known = std::move(made);
  return known->handle;
}

void KernelCalls::count_on_gpu(const OperationSpec& spec) {
  Window& window = *spec.window;
  const bool sends = spec.kind == OperationKind::kSignal;
  std::uint8_t& counted = sends ? window.sent_on_gpu(spec.peer, spec.slot)
                                : window.awaited_on_gpu(spec.peer, spec.slot);
  if (counted != 0) return;
  Tables& tables = *tables_.at(window.number());
  const std::size_t k =
      static_cast<std::size_t>(spec.peer) * static_cast<std::size_t>(window.slots()) +
      static_cast<std::size_t>(spec.slot);
  const std::uint64_t now =
      sends ? window.sent(spec.peer, spec.slot) : window.awaited(spec.peer, spec.slot);
  // Where the host has counted since then kernels have not.
  if (now != tables.counts[sends ? k : tables.counts.size() / 2 + k]) {
    gpu_->fill(address_of((sends ? tables.handle.sent : tables.handle.awaited) + k), &now,
               sizeof now);
  }
  counted = 1;
}

void KernelCalls::forget(const Window& window) {
  const auto found = tables_.find(window.number());
  if (found == tables_.end()) return;
  if (found->second != nullptr) give(found->second->memory);
  tables_.erase(found);
}

// ---- the ring -----------------------------------------------------------------------------

std::optional<OperationSpec> KernelCalls::read(std::uint64_t ticket, std::vector<std::byte>& data) {
  const std::uint64_t lap = (ticket / kEntries + 1) & 0xffU;
  rwDeviceEntry& entry = shared_->entries[ticket % kEntries];
  std::array<std::uint64_t, 8> words{};
  for (std::size_t k = 0; k < words.size(); ++k) {
    words[k] = std::atomic_ref(entry.words[k]).load(std::memory_order_acquire);
    if (words[k] >> 56U != lap) return {};
    words[k] &= kPayload;
  }
  OperationSpec spec;
  const std::uint64_t kind = words[0] & 0xffU;
  spec.kind = kind == kAsksPut   ? OperationKind::kPut
              : kind == kAsksGet ? OperationKind::kGet
                                 : OperationKind::kSignal;
  spec.slot = static_cast<int>((words[0] >> 8U) & 0xffffU);
  spec.peer = static_cast<int>(words[0] >> 24U);
  const auto found = tables_.find(static_cast<std::uint32_t>(words[1]));
  if (kind > kAsksSignal || found == tables_.end() || found->second == nullptr) {
    throw Error(Errc::kInvalidUsage, "a kernel used window {}, which was freed", words[1]);
  }
  spec.window = found->second->window;
  spec.offset = words[2];
  spec.bytes = words[3];
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  auto* const local = reinterpret_cast<std::byte*>(words[4]);
  spec.count = words[5];
  if (kind == kAsksGet) spec.destination = local;
  if (kind == kAsksPut) {
    spec.source = local;
    if (spec.bytes <= kMostInline) {
      const std::uint64_t value = words[6] | words[7] << 32U;
      data.resize(sizeof value);
      std::memcpy(data.data(), &value, sizeof value);
      spec.source = data.data();
    }
  }
  return spec;
}

bool KernelCalls::poll(const std::function<void(Operation&)>& start) {
  bool moved = false;
  while (needs_links_ && !fault_.has_value()) {
    Asked asked;
    try {
      const std::optional<OperationSpec> spec = read(read_, asked.data);
      if (!spec.has_value()) break;
      asked.operation = std::make_unique<Operation>(*spec);
      ++read_;
      moved = true;
      under_way_.push_back(std::move(asked));
      start(*under_way_.back().operation);
    } catch (const Error& error) {
      fault_ = error;
    }
  }
  while (!under_way_.empty() && under_way_.front().operation->ended()) {
    const std::optional<Error>& failed = under_way_.front().operation->fault;
    if (failed.has_value() && !fault_.has_value()) fault_ = failed;
    under_way_.pop_front();
    moved = true;
    std::atomic_ref(shared_->done).store(++done_, std::memory_order_release);
  }
  return moved;
}

bool KernelCalls::busy(const Window& window) const {
  return std::ranges::any_of(
      under_way_, [&](const Asked& asked) { return asked.operation->spec.window == &window; });
}

std::optional<Error> KernelCalls::fault() const {
  if (fault_.has_value()) return fault_;
  rwDeviceControl& control = shared_->control;
  const std::uint32_t reason = std::atomic_ref(control.reason).load(std::memory_order_acquire);
  if (reason == 0) return {};
  const int peer = std::atomic_ref(control.peer).load(std::memory_order_relaxed);
  const int slot = std::atomic_ref(control.slot).load(std::memory_order_relaxed);
  if (reason == kTimedOut) {
    return Error(Errc::kTimeout, "a kernel waited for rank {}, slot {}, longer than its time limit",
                 peer, slot);
  }
  return Error(Errc::kInvalidArgument,
               "a kernel used a window with a range, peer or slot that cannot be right, or sent "
               "or received without queues: rank {}, slot {}",
               peer, slot);
}

void KernelCalls::abort() noexcept {
  std::atomic_ref(shared_->control.abort).store(1, std::memory_order_release);
}

}  // namespace ropewalk::message
