#include "message/stream_calls.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <new>
#include <thread>
#include <utility>

#include "core/log.h"
#include "message/device_part.h"
#include "message/window.h"

namespace ropewalk::message {
namespace {

namespace gpus = transport::window;
using Clock = std::chrono::steady_clock;
using gpus::CuPointer;
using gpus::CurrentContext;

// Calls that streams hold at once: the next one waits in the host.
constexpr std::size_t kLines = 4096;
constexpr std::size_t kTriggers = 256;  // of batches that wait for theirs at once
constexpr std::chrono::seconds kPatience{2};
// Longer copies have the copy engine, which is faster and holds no multiprocessor.
constexpr std::size_t kMostKernelBytes = 256 << 10;
// More of a batch's data is copied by a kernel of its own: one block takes longer than a launch.
constexpr std::uint64_t kMostOfABlock = 64 << 10;
// Of a batch; each has a line of words.
constexpr std::size_t kMostWaits = 128;
// Between two writes of the value that ends waits.
constexpr std::chrono::milliseconds kReleasePeriod{5};

bool overlap(const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes) {
  return std::less<>()(a, b + b_bytes) && std::less<>()(b, a + a_bytes);
}

}  // namespace

StreamCalls::StreamCalls(gpus::Gpu& gpu)
    : gpu_(gpu), kernels_(load_kernels(gpu)), kernel_on_host_(kernel_on_host(gpu)) {
  const gpus::CudaApi& cuda = gpu.cuda();
  if (!gpu.writes_marks() || cuda.stream_batch == nullptr || cuda.copy == nullptr ||
      cuda.stream_capturing == nullptr) {
    throw Error(Errc::kInvalidUsage,
                "{}: its driver has no 64-bit memory operations of streams (CUDA 11.7)",
                gpu.name());
  }
  const CurrentContext current(cuda, gpu.context());
  cuda.check(cuda.host_allocate(&memory_, kLines * sizeof(Line),
                                gpus::kCuHostPortable | gpus::kCuHostDeviceMap),
             "cuMemHostAlloc");
  CuPointer device = 0;
  const gpus::CuResult mapped = cuda.host_pointer(&device, memory_, 0);
  if (mapped != gpus::kCuSuccess) {
    cuda.warn(cuda.host_free(memory_), "cuMemFreeHost");
    cuda.check(mapped, "cuMemHostGetDevicePointer");
  }
  shift_ = device - reinterpret_cast<std::uint64_t>(memory_);
  const gpus::CuResult taken = cuda.allocate(&triggers_, kTriggers * sizeof(Line));
  if (taken != gpus::kCuSuccess) {
    cuda.warn(cuda.host_free(memory_), "cuMemFreeHost");
    cuda.check(taken, "cuMemAlloc");
  }
  const std::vector<std::byte> zeros(kTriggers * sizeof(Line));
  gpu.fill(triggers_, zeros.data(), zeros.size());
  for (std::size_t k = kTriggers; k > 0; --k) {
    free_triggers_.push_back(triggers_ + (k - 1) * sizeof(Line));
  }
  for (std::size_t k = kLines; k > 0; --k) {
    free_.push_back(new (static_cast<Line*>(memory_) + (k - 1)) Line);
  }
}

StreamCalls::~StreamCalls() {
  const Clock::time_point limit = Clock::now() + kPatience;
  while (busy() && Clock::now() < limit) {
    release();
    (void)poll({});
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (busy()) {
    log::warn("{} call(s) on windows are still in streams of {}", held_.size(), gpu_.name());
    return;  // which may still write to the words
  }
  try {
    const CurrentContext current(gpu_.cuda(), gpu_.context());
    gpu_.cuda().warn(gpu_.cuda().free(triggers_), "cuMemFree");
    gpu_.cuda().warn(gpu_.cuda().host_free(memory_), "cuMemFreeHost");
  } catch (const Error&) {
    // CUDA has ended before this did.
  }
}

bool StreamCalls::captures(gpus::CuStream stream) const {
  int capturing = 0;
  gpu_.cuda().check(gpu_.cuda().stream_capturing(stream, &capturing), "cuStreamIsCapturing");
  return capturing != 0;
}

bool StreamCalls::accessible(const void* address) const noexcept {
  return is_known(gpu_.cuda(), address);
}

std::uint64_t StreamCalls::on_device(const std::uint64_t& word) const noexcept {
  return reinterpret_cast<std::uint64_t>(&word) + shift_;
}

std::uint64_t StreamCalls::look(const std::uint64_t& word) noexcept {
  return std::atomic_ref(const_cast<std::uint64_t&>(word)).load(std::memory_order_acquire);
}

// ---- enqueueing ---------------------------------------------------------------------------

void StreamCalls::copy(void* to, const void* from, std::size_t bytes) {
  auto* const there = static_cast<std::byte*>(to);
  const auto* const here = static_cast<const std::byte*>(from);
  if (!kernels_.has_value() || bytes > kMostKernelBytes) {
    submit();
    gpu_.cuda().check(gpu_.cuda().copy(reinterpret_cast<CuPointer>(to),
                                       reinterpret_cast<CuPointer>(from), bytes, stream_),
                      "cuMemcpyAsync (a put or get)");
    return;
  }
  // Those of one kernel run in any order.
  const bool depends = std::ranges::any_of(copies_, [&](const DeviceCopy& one) {
    return overlap(one.to, one.bytes, there, bytes) || overlap(one.to, one.bytes, here, bytes) ||
           overlap(one.from, one.bytes, there, bytes);
  });
  if (depends || copies_.size() == kMostDeviceCopies) submit();
  copies_.push_back({there, here, bytes});
}

void StreamCalls::submit_copies() {
  // One alone takes the copy engine the least time; several, one after the other, the longest.
  if (copies_.empty()) return;
  if (copies_.size() == 1) {
    const DeviceCopy& one = copies_.front();
    gpu_.cuda().check(gpu_.cuda().copy(reinterpret_cast<CuPointer>(one.to),
                                       reinterpret_cast<CuPointer>(one.from), one.bytes, stream_),
                      "cuMemcpyAsync (a put or get)");
  } else {
    launch(*kernels_, gpu_, copies_, stream_);
  }
  copies_.clear();
}

void StreamCalls::write(std::uint64_t address, std::uint64_t value) {
  gpus::CuStreamOperation operation;
  operation.operation = gpus::kCuStreamWrite64;
  operation.address = address;
  operation.value = value;
  pending_.push_back(operation);
}

void StreamCalls::wait(std::uint64_t address, std::uint64_t value) {
  write(address, value);
  pending_.back().operation = gpus::kCuStreamWait64;
}

void StreamCalls::submit() {
  submit_copies();
  for (std::size_t done = 0; done < pending_.size();) {
    const std::size_t count = std::min(pending_.size() - done, gpus::kCuMostStreamOperations);
    gpu_.cuda().check(
        gpu_.cuda().stream_batch(stream_, static_cast<unsigned>(count), pending_.data() + done, 0),
        "cuStreamBatchMemOp");
    done += count;
  }
  pending_.clear();
}

void StreamCalls::begin(gpus::CuStream stream) {
  stream_ = stream;
  copies_.clear();
  pending_.clear();
  last_waits_.clear();
  plain_.clear();
  ordered_ = false;
  triggered_ = false;
  first_number_ = last_number_ + 1;
}

StreamCalls::Held& StreamCalls::hold(const OperationSpec& spec) {
  Held& held = held_.emplace_back();
  held.line = free_.back();
  free_.pop_back();
  held.number = ++last_number_;
  held.passing = {&held.line->passed, held.number};
  held.spec = spec;
  return held;
}

StreamCalls::Trigger StreamCalls::await_trigger(const Window& window) {
  OperationSpec spec;
  spec.kind = OperationKind::kWaitSignal;
  spec.window = const_cast<Window*>(&window);
  Held& held = hold(spec);
  held.of_trigger = true;
  triggered_ = true;
  held.counter = free_triggers_.back();
  free_triggers_.pop_back();
  wait(held.counter, held.number);
  write(on_device(held.line->passed), held.number);
  ordered_ = true;
  return {held.counter, held.number};
}

void StreamCalls::add(const OperationSpec& spec, std::uint64_t target) {
  const Window& window = *spec.window;
  const Part& part = window.part(spec.peer);
  const CurrentContext current(gpu_.cuda(), gpu_.context());
  const bool copies = spec.kind == OperationKind::kPut || spec.kind == OperationKind::kGet;
  if (spec.kind == OperationKind::kWaitSignal) {
    Held& held = hold_wait(spec, target);
    write(on_device(held.line->began), held.number);
    wait(held.counter, target);
    write(on_device(held.line->passed), held.number);
  } else if (!part.mapped) {
    Held& held = hold(spec);
    held.carried = std::make_unique<Operation>(spec);
    write(on_device(held.line->passed), held.number);
    // A signal has no memory that the stream could change too early.
    if (spec.kind != OperationKind::kSignal) {
      last_waits_.emplace_back(on_device(held.line->done), held.number);
    }
    if (spec.kind == OperationKind::kFlush) wait_for_links();
  } else {
    if (plain_.empty() || plain_.back() != &window) plain_.push_back(&window);
    if (spec.kind == OperationKind::kSignal) {
      // The one on the GPU first, where streams and kernels wait.
      if (window.gpu() != nullptr) {
        write(window.counter_on_gpu(spec.peer, window.rank(), spec.slot), target);
      }
      write(window.counter_in_host(spec.peer, window.rank(), spec.slot), target);
    } else if (copies && spec.bytes > 0) {
      if (ordered_) submit();
      ordered_ = false;
      std::byte* const there = window.data_on_gpu(spec.peer) + spec.offset;
      if (spec.kind == OperationKind::kPut) {
        copy(there, spec.source, spec.bytes);
      } else {
        copy(spec.destination, there, spec.bytes);
      }
      return;
    }
  }
  ordered_ = true;
}

void StreamCalls::wait_for_links() {
  for (const auto& [word, value] : last_waits_) wait(word, value);
  last_waits_.clear();
}

void StreamCalls::end_call() {
  if (triggered_ || last_number_ < first_number_) return;
  held_.back().last = true;
  ++calls_;
  first_number_ = last_number_ + 1;
}

void StreamCalls::finish() {
  wait_for_links();
  if (!plain_.empty()) {
    OperationSpec rest;
    rest.kind = OperationKind::kFlush;
    Held& held = hold(rest);
    held.others = std::exchange(plain_, {});
    write(on_device(held.line->passed), held.number);
  }
  end_call();
  ordered_ = true;
  const CurrentContext current(gpu_.cuda(), gpu_.context());
  submit();
}

// ---- prepared batches ---------------------------------------------------------------------

std::shared_ptr<const StreamBatch> StreamCalls::prepare(
    std::span<const OperationSpec> specs) const {
  if (!kernels_.has_value() && kernel_on_host_ == nullptr) return nullptr;
  auto made = std::make_shared<StreamBatch>();
  std::uint64_t most_bytes = 0;
  const auto count = [](std::vector<OperationSpec>& those, const OperationSpec& spec) {
    const auto known = std::ranges::find_if(those, [&](const OperationSpec& one) {
      return one.window == spec.window && one.peer == spec.peer && one.slot == spec.slot;
    });
    if (known == those.end()) {
      those.push_back(spec);
      return true;
    }
    // A sum that no counter holds is refused for its own sake, by who adds them one by one.
    if (spec.count > Window::kMostSignals - known->count) return false;
    known->count += spec.count;
    return true;
  };
  for (const OperationSpec& spec : specs) {
    if (std::ranges::find(made->windows, spec.window) == made->windows.end()) {
      made->windows.push_back(spec.window);
    }
    const Part& part = spec.window->part(spec.peer);
    if (spec.window->gpu() == nullptr) return nullptr;  // the driver serves the host's memory
    if (spec.kind == OperationKind::kWaitSignal) {
      if (!count(made->waits, spec)) return nullptr;
      made->driver_waits |= part.takes_turns;
      continue;
    }
    if (!part.mapped) return nullptr;
    if (spec.kind == OperationKind::kSignal) {
      if (!count(made->signals, spec)) return nullptr;
      continue;
    }
    if (spec.kind != OperationKind::kPut) return nullptr;
    if (spec.bytes == 0) continue;
    if (!is_of(gpu_, spec.source)) return nullptr;
    made->copies.push_back({part.data + spec.offset, spec.source, spec.bytes});
    made->bytes += spec.bytes;
    most_bytes = std::max<std::uint64_t>(most_bytes, spec.bytes);
  }
  made->driver_waits |= made->waits.size() > PutsAndSignals::kMostWaits;
  // What the copy engine moves is followed by the driver's operations at less cost than by a
  // kernel, and one copy, or one signal, alone is no more than that.
  const bool by_engine =
      made->bytes > kMostOfABlock && (made->copies.size() == 1 || most_bytes > kMostKernelBytes);
  const bool waits = !made->waits.empty() && !made->driver_waits;
  if (by_engine || (made->copies.size() + made->signals.size() < 2 && !waits) ||
      made->signals.size() > PutsAndSignals::kMostSignals || made->waits.size() > kMostWaits ||
      reason_against_kernels(specs).has_value()) {
    return nullptr;
  }
  made->lanes = lanes_of_arguments(most_bytes, made->copies.size());
  return made;
}

// Those that are too much for the one block.
void StreamCalls::copy_all(std::span<const DeviceCopy> copies) {
  for (const DeviceCopy& one : copies) {
    if (copies_.size() == kMostDeviceCopies) submit_copies();
    copies_.push_back(one);
    // The stand-in has no kernel for copies.
    if (!kernels_.has_value()) submit_copies();
  }
  submit_copies();
}

void StreamCalls::launch_batch(const StreamBatch& batch, std::span<const std::uint64_t> values,
                               gpus::CuStream stream) {
  begin(stream);
  const CurrentContext current(gpu_.cuda(), gpu_.context());
  std::span<const DeviceCopy> copies = batch.copies;
  if (batch.bytes > kMostOfABlock || copies.size() > PutsAndSignals::kMostCopies) {
    copy_all(copies);
    copies = {};
  }
  PutsAndSignals call;
  std::ranges::copy(copies, call.copies);
  call.num_copies = static_cast<std::uint32_t>(copies.size());
  call.num_signals = static_cast<std::uint32_t>(batch.signals.size());
  call.lanes = batch.lanes;
  OperationSpec rest;
  rest.kind = OperationKind::kFlush;
  Held& held = hold(rest);
  held.others.assign(batch.windows.begin(), batch.windows.end());
  // NOLINTBEGIN(performance-no-int-to-ptr): addresses of the GPU
  const auto word = [](std::uint64_t address) { return reinterpret_cast<std::uint64_t*>(address); };
  // NOLINTEND(performance-no-int-to-ptr)
  for (std::size_t k = 0; k < batch.signals.size(); ++k) {
    const OperationSpec& spec = batch.signals[k];
    const Window& window = *spec.window;
    call.signals[k] = {word(window.counter_on_gpu(spec.peer, window.rank(), spec.slot)),
                       word(window.counter_in_host(spec.peer, window.rank(), spec.slot)),
                       values[k]};
  }
  call.passed = word(on_device(held.line->passed));
  call.number = held.number;
  const std::span<const std::uint64_t> targets = values.subspan(batch.signals.size());
  if (!batch.driver_waits) {
    for (std::size_t k = 0; k < batch.waits.size(); ++k) {
      Held& wait = hold_wait(batch.waits[k], targets[k]);
      wait.began_number = held.number;
      wait.passing = held.passing;
      call.waits[call.num_waits++] = {word(wait.counter), wait.target,
                                      word(on_device(wait.line->began))};
    }
  }
  if (kernels_.has_value()) {
    launch(*kernels_, gpu_, call, stream);
  } else {
    launch_on_host(kernel_on_host_, gpu_, call, stream);
  }
  if (batch.driver_waits) await(batch.waits, targets);
  end_call();
  submit();
}

StreamCalls::Held& StreamCalls::hold_wait(const OperationSpec& spec, std::uint64_t target) {
  Held& held = hold(spec);
  held.counter = spec.window->arrivals_on_gpu(spec.peer, spec.slot);
  held.target = target;
  held.began_number = held.number;
  return held;
}

// The stream says once that it has passed them all: that takes it as long as a wait.
void StreamCalls::await(std::span<const OperationSpec> waits,
                        std::span<const std::uint64_t> targets) {
  if (waits.empty()) return;
  std::vector<Held*> all;
  for (std::size_t k = 0; k < waits.size(); ++k) {
    Held& held = *all.emplace_back(&hold_wait(waits[k], targets[k]));
    write(on_device(held.line->began), held.number);
    wait(held.counter, targets[k]);
  }
  const Held& last = *all.back();
  write(on_device(last.line->passed), last.number);
  for (Held* held : all) held->passing = last.passing;
}

// ---- graphs -------------------------------------------------------------------------------

void StreamCalls::capture(const OperationSpec& spec, const rwDeviceWindow& device,
                          gpus::CuStream stream) {
  const CurrentContext current(gpu_.cuda(), gpu_.context());
  const Part& part = spec.window->part(spec.peer);
  DeviceCall call;
  call.window = device;
  call.peer = spec.peer;
  call.slot = spec.slot;
  call.count = spec.count;
  call.offset = spec.offset;
  call.bytes = spec.bytes;
  switch (spec.kind) {
    case OperationKind::kPut:
    case OperationKind::kGet: {
      const bool gets = spec.kind == OperationKind::kGet;
      if (spec.bytes == 0) return;
      if (part.mapped) {
        std::byte* const there = part.data + spec.offset;
        gpu_.cuda().check(
            gpu_.cuda().copy(reinterpret_cast<CuPointer>(gets ? spec.destination : there),
                             reinterpret_cast<CuPointer>(gets ? there : spec.source), spec.bytes,
                             stream),
            "cuMemcpyAsync (a put or get)");
        return;
      }
      call.kind = gets ? DeviceCall::Kind::kGet : DeviceCall::Kind::kPut;
      call.local = gets ? spec.destination : const_cast<std::byte*>(spec.source);
      break;
    }
    case OperationKind::kSignal: call.kind = DeviceCall::Kind::kSignal; break;
    case OperationKind::kWaitSignal: call.kind = DeviceCall::Kind::kWaitSignal; break;
    case OperationKind::kFlush: return;  // mapped, so that the copies before it are there
  }
  launch(*kernels_, gpu_, call, stream);
}

void StreamCalls::capture(const DeviceBatch& prepared, std::span<const OperationSpec> specs,
                          gpus::CuStream stream) {
  const CurrentContext current(gpu_.cuda(), gpu_.context());
  rwDeviceBatch batch = prepared.handle;
  if (prepared.bytes > kMostOfABlock) {
    // By many blocks, or the copy engine; what follows in the graph finds it there.
    begin(stream);
    for (const OperationSpec& spec : specs) {
      if (spec.kind != OperationKind::kPut || spec.bytes == 0) continue;
      copy(spec.window->part(spec.peer).data + spec.offset, spec.source, spec.bytes);
    }
    submit();
    batch.num_puts = 0;
  }
  launch(*kernels_, gpu_, batch, stream);
}

// ---- the watch ----------------------------------------------------------------------------

bool StreamCalls::poll(const std::function<void(Operation&)>& start) {
  bool moved = false;
  // The last first: a stream goes on while this looks, and what it passes later must not be seen
  // passed where what it passed before is not. A signal would overtake its put.
  for (auto it = held_.rbegin(); it != held_.rend(); ++it) {
    it->passed = it->passed || has_passed(*it);
  }
  for (auto it = held_.begin(); it != held_.end();) {
    Held& held = *it;
    bool over = held.passed;
    if (held.carried != nullptr && over) {
      if (!held.started && start != nullptr) {
        held.started = true;
        moved = true;
        start(*held.carried);
      }
      over = held.carried->ended();
      if (over) {
        if (held.carried->fault.has_value() && !fault_.has_value()) fault_ = held.carried->fault;
        std::atomic_ref(held.line->done).store(held.number, std::memory_order_release);
      }
    }
    if (!over) {
      ++it;
      continue;
    }
    moved = true;
    free_.push_back(held.line);
    if (held.of_trigger) free_triggers_.push_back(held.counter);
    if (held.last) --calls_;
    it = held_.erase(it);
  }
  return moved;
}

bool StreamCalls::busy(const Window& window) const {
  return std::ranges::any_of(held_, [&](const Held& held) {
    return held.spec.window == &window ||
           std::ranges::find(held.others, &window) != held.others.end();
  });
}

bool StreamCalls::asks() const noexcept {
  return std::ranges::any_of(
      held_, [](const Held& held) { return held.carried != nullptr && !held.started; });
}

std::optional<Error> StreamCalls::overdue(std::chrono::nanoseconds limit,
                                          const std::function<bool(int)>& left) {
  const Clock::time_point now = Clock::now();
  for (Held& held : held_) {
    if (held.counter == 0 || held.of_trigger || look(held.line->began) != held.began_number ||
        has_passed(held)) {
      continue;
    }
    // Several may have to come before the stream goes on: of which this one has.
    if (held.spec.window->arrived(held.spec.peer, held.spec.slot) >= held.target) continue;
    if (!held.began.has_value()) held.began = now;
    const auto waited = now - *held.began;
    if (waited > kLeftGrace && left(held.spec.peer)) {
      return Error(Errc::kPeerLost, "{}: a stream waits, and rank {} left the communicator",
                   describe(held.spec), held.spec.peer);
    }
    if (limit.count() > 0 && waited > limit) {
      return Error(Errc::kTimeout, "{}: a stream has waited for {:.3g} s", describe(held.spec),
                   std::chrono::duration<double>(waited).count());
    }
  }
  return {};
}

void StreamCalls::release() {
  for (Held& held : held_) {
    if (held.carried != nullptr) {
      held.carried->fail(Error(Errc::kAborted, "stopped"), false);
      std::atomic_ref(held.line->done).store(held.number, std::memory_order_release);
    }
  }
  const Clock::time_point now = Clock::now();
  if (now < next_release_) return;
  next_release_ = now + kReleasePeriod;
  try {
    const CurrentContext current(gpu_.cuda(), gpu_.context());
    const gpus::CuStream own = gpu_.stream(0);
    for (const Held& held : held_) {
      if (held.counter == 0) continue;
      // A trigger's word goes on being used.
      const std::uint64_t value = held.of_trigger ? held.number : Window::kMostSignals;
      gpu_.cuda().check(gpu_.cuda().stream_write64(own, held.counter, value, 0),
                        "cuStreamWriteValue64 (ending a wait)");
    }
  } catch (const Error& error) {
    log::warn("{}", error.what());
  }
}

}  // namespace ropewalk::message
