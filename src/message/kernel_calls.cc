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
// Those of ropewalk::device in device.cuh: of Status and kBadCount, and of Request.
constexpr std::uint32_t kTimedOut = 2;
constexpr std::uint32_t kBadCount = 8;
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

void KernelCalls::fill(void* memory, std::span<const std::byte> image) {
  if (gpu_ == nullptr) {
    std::memcpy(memory, image.data(), image.size());
  } else {
    gpu_->fill(address_of(memory), image.data(), image.size());
  }
}

void KernelCalls::give(gpus::Gpu* gpu, void* memory) noexcept {
  if (memory == nullptr) return;
  if (gpu == nullptr) {
    ::operator delete (memory, std::align_val_t{64});
    return;
  }
  try {
    const gpus::CurrentContext current(gpu->cuda(), gpu->context());
    gpu->cuda().warn(gpu->cuda().free(address_of(memory)), "cuMemFree");
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
  fill(made->memory, image);
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

// ---- batches ------------------------------------------------------------------------------

// `window` is the caller's to set.
rwDeviceBatchCount KernelCalls::count_of(const OperationSpec& spec) const {
  const Window& window = *spec.window;
  const rwDeviceWindow& handle = tables_.at(window.number())->handle;
  const std::size_t k =
      static_cast<std::size_t>(spec.peer) * static_cast<std::size_t>(window.slots()) +
      static_cast<std::size_t>(spec.slot);
  rwDeviceBatchCount count{};
  count.count = spec.count;
  count.peer = spec.peer;
  count.slot = spec.slot;
  // NOLINTBEGIN(performance-no-int-to-ptr): addresses of the GPU
  if (spec.kind == OperationKind::kWaitSignal) {
    count.counted = handle.awaited + k;
    count.word = const_cast<std::uint64_t*>(window.arrivals(spec.peer)) +
                 static_cast<std::size_t>(spec.slot) * sizeof(SignalLine) / sizeof(std::uint64_t);
    return count;
  }
  count.counted = handle.sent + k;
  if (!window.part(spec.peer).mapped) return count;
  if (gpu_ == nullptr) {
    count.word = &window.counter(spec.peer, window.rank(), spec.slot);
  } else {
    count.word = reinterpret_cast<std::uint64_t*>(
        window.counter_on_gpu(spec.peer, window.rank(), spec.slot));
    count.host_word = reinterpret_cast<std::uint64_t*>(
        window.counter_in_host(spec.peer, window.rank(), spec.slot));
  }
  // NOLINTEND(performance-no-int-to-ptr)
  return count;
}

std::shared_ptr<const DeviceBatch> KernelCalls::batch(std::span<const OperationSpec> specs,
                                                      std::chrono::nanoseconds timeout) {
  std::map<Window*, std::size_t> windows;  // and their places in the table
  std::vector<rwDeviceWindow> handles;
  std::vector<rwDeviceBatchPut> puts;
  // By kind; those for one counter are one.
  std::array<std::vector<rwDeviceBatchCount>, 2> counts;
  std::map<std::uint64_t*, std::size_t> known;
  auto made = std::make_shared<DeviceBatch>();
  std::uint64_t most_bytes = 0;
  for (const OperationSpec& spec : specs) {
    const auto [at, fresh] = windows.try_emplace(spec.window, handles.size());
    if (fresh) handles.push_back(handle(*spec.window, timeout));
    // Where it will be is not known yet.
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    const auto* place = reinterpret_cast<const rwDeviceWindow*>(at->second);
    const Part& part = spec.window->part(spec.peer);
    if (spec.kind == OperationKind::kPut) {
      if (spec.bytes == 0) continue;
      rwDeviceBatchPut put{};
      if (part.mapped) put.to = reinterpret_cast<unsigned char*>(part.data + spec.offset);
      put.from = reinterpret_cast<const unsigned char*>(spec.source);
      put.bytes = spec.bytes;
      put.window = place;
      put.offset = spec.offset;
      put.peer = spec.peer;
      puts.push_back(put);
      made->carried |= !part.mapped;
      made->bytes += spec.bytes;
      if (part.mapped) most_bytes = std::max(most_bytes, spec.bytes);
      continue;
    }
    const bool waits = spec.kind == OperationKind::kWaitSignal;
    made->carried |= !waits && !part.mapped;
    rwDeviceBatchCount count = count_of(spec);
    count.window = place;
    std::vector<rwDeviceBatchCount>& its = counts[waits ? 1 : 0];
    const auto [earlier, first] = known.try_emplace(count.counted, its.size());
    if (first) {
      its.push_back(count);
    } else {
      its[earlier->second].count += count.count;
    }
  }
  const auto aligned = [](std::size_t bytes) { return (bytes + 63) / 64 * 64; };
  const std::size_t puts_at = aligned(handles.size() * sizeof(rwDeviceWindow));
  const std::size_t signals_at = puts_at + aligned(puts.size() * sizeof(rwDeviceBatchPut));
  const std::size_t waits_at = signals_at + aligned(counts[0].size() * sizeof(rwDeviceBatchCount));
  const std::size_t bytes = waits_at + aligned(counts[1].size() * sizeof(rwDeviceBatchCount)) + 64;
  made->memory =
      std::shared_ptr<void>(take(bytes), [gpu = gpu_](void* memory) { give(gpu, memory); });
  auto* const base = static_cast<std::byte*>(made->memory.get());
  const auto* const first = reinterpret_cast<const rwDeviceWindow*>(base);
  const auto settle = [&](auto& entries) {
    for (auto& entry : entries)
      entry.window = first + reinterpret_cast<std::uint64_t>(entry.window);
  };
  settle(puts);
  settle(counts[0]);
  settle(counts[1]);
  std::vector<std::byte> image(bytes);
  const auto place = [&](std::size_t at, const auto& entries) {
    std::ranges::copy(std::as_bytes(std::span(entries)),
                      image.begin() + static_cast<std::ptrdiff_t>(at));
  };
  place(0, handles);
  place(puts_at, puts);
  place(signals_at, counts[0]);
  place(waits_at, counts[1]);
  fill(base, image);
  rwDeviceBatch& out = made->handle;
  out.puts = reinterpret_cast<const rwDeviceBatchPut*>(base + puts_at);
  out.signals = reinterpret_cast<const rwDeviceBatchCount*>(base + signals_at);
  out.waits = reinterpret_cast<const rwDeviceBatchCount*>(base + waits_at);
  out.num_puts = static_cast<std::uint32_t>(puts.size());
  out.num_signals = static_cast<std::uint32_t>(counts[0].size());
  out.num_waits = static_cast<std::uint32_t>(counts[1].size());
  out.may_fail = made->carried || out.num_waits > 0 ? 1 : 0;
  out.lanes = lanes_of(most_bytes, puts.size());
  return made;
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
  if (kind == kAsksSignal) {
    spec.count = words[5] | words[2] << 56U;
    spec.offset = 0;
  }
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
  if (reason == kBadCount) {
    return Error(Errc::kInvalidArgument,
                 "a kernel would have counted signals by 0, or beyond the {} at which a counter "
                 "ends: rank {}, slot {}",
                 Window::kMostSignals, peer, slot);
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
