#include "message/messenger.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "core/interrupt.h"
#include "core/log.h"
#include "message/device_kernels.h"
#include "message/device_part.h"

namespace ropewalk::message {
namespace {

using Clock = std::chrono::steady_clock;

// How the thread spends the time while nothing moves.
constexpr std::chrono::microseconds kBusy{200};        // polls all the time
constexpr std::chrono::microseconds kNap{50};          // then sleeps so long between two polls...
constexpr std::chrono::microseconds kNapsFor{50'000};  // ...for that time
constexpr std::chrono::microseconds kSleep{1'000};     // and then so long

// What a rank tells the others once it has its memory, or has not.
struct Outcome {
  std::int32_t code = 0;
  std::array<char, 200> fault{};
};

Refused left_error(const OperationSpec& spec) {
  return {Errc::kPeerLost, "{}: rank {} left the communicator", describe(spec), spec.peer};
}

Refused counted(const OperationSpec& spec) {
  return {Errc::kInvalidUsage,
          "{}: kernels count these since a call was captured into a graph: use another slot",
          describe(spec)};
}

}  // namespace

Messenger::Messenger(bootstrap::Bootstrap& bootstrap, bootstrap::FailureState& failure,
                     Options options)
    : bootstrap_(bootstrap),
      failure_(failure),
      options_(std::move(options)),
      waiter_(options_.policy, *this) {}

Messenger::~Messenger() {
  ends_ = true;
  wake();
  if (thread_.joinable()) thread_.join();
  stop(Error(Errc::kAborted, "the communicator was destroyed"));
  helping_->end();
  // Before the windows, whose counters streams may still wait for.
  const Lock lock(mutex_);
  streams_.clear();
  kernels_.clear();
}

// ---- windows ------------------------------------------------------------------------------

Window& Messenger::create_window(const WindowSpec& given, Deadline deadline) {
  const int rank = bootstrap_.rank();
  WindowSpec spec = given;
  std::optional<QueueLayout> queues;
  if (spec.queue_bytes.has_value() && QueueLayout::is_size(*spec.queue_bytes) && spec.slots >= 1 &&
      spec.slots <= kMostSlots) {
    spec.bytes = queues.emplace(bootstrap_.size(), spec.slots, *spec.queue_bytes).bytes();
  }
  const std::uint32_t number = ++last_number_;
  auto window = std::make_unique<Window>(
      number, rank, spec.slots, spec.gpu,
      WindowMemory::create(bootstrap_, options_.reach, spec, options_.backing, deadline));
  std::optional<Error> failure = window->failure();
  try {
    std::vector<int> carried;
    for (int peer = 0; peer < bootstrap_.size() && !failure.has_value(); ++peer) {
      const Part& part = window->part(peer);
      if (!part.mapped || part.served) carried.push_back(peer);
    }
    if (spec.gpu != nullptr && !failure.has_value()) {
      const Lock lock(mutex_);
      add_streams(*spec.gpu);
    }
    if (queues.has_value() && !failure.has_value()) window->make_queues(*queues);
    if (!carried.empty()) {
      need_thread();
      const Lock lock(mutex_);
      if (carrier_ == nullptr) {
        carrier_ = std::make_unique<Carrier>(options_.make_links(Carrier::link_options()));
      }
      carrier_->add(*window);
      for (const int peer : carried) carrier_->connect(peer);
    }
  } catch (const Error& error) {
    failure = error;
  }
  // Only now may a rank use another's part: all have theirs, and know the window's number.
  std::vector<Outcome> outcomes(static_cast<std::size_t>(bootstrap_.size()));
  if (failure.has_value()) {
    Outcome& mine = outcomes[static_cast<std::size_t>(rank)];
    mine.code = static_cast<std::int32_t>(failure->code());
    std::string_view(failure->what()).copy(mine.fault.data(), mine.fault.size() - 1);
  }
  bootstrap_.all_gather(std::as_writable_bytes(std::span(outcomes)), sizeof(Outcome), deadline);
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    if (outcomes[r].fault[0] == '\0') continue;
    const Lock lock(mutex_);
    if (carrier_ != nullptr) carrier_->remove(*window);
    throw Refused(static_cast<Errc>(outcomes[r].code), "rank {}: {}", r, outcomes[r].fault.data());
  }
  if (window->queues() != nullptr && window->queues()->carried()) {
    const Lock lock(mutex_);
    with_queues_.push_back(window.get());
  }
  windows_.push_back(std::move(window));
  return *windows_.back();
}

// Nothing that this rank began on it is under way.
void Messenger::require_idle(const Window& window) {
  const bool waits = std::ranges::any_of(started_, [&](const Started& one) {
    if (one.operation != nullptr) return one.operation->spec.window == &window;
    return std::ranges::any_of(one.batch->operations_, [&](const Operation& operation) {
      return operation.spec.window == &window;
    });
  });
  if (waits || (carrier_ != nullptr && carrier_->busy(window))) {
    throw Refused(Errc::kInvalidUsage,
                  "window {} has operations with requests that have not ended: wait for them "
                  "before it is freed",
                  window.number());
  }
  (void)poll_streams();
  for (const auto& [gpu, streams] : streams_) {
    if (streams == nullptr || !streams->busy(window)) continue;
    throw Refused(Errc::kInvalidUsage,
                  "window {} has operations that a stream has not done yet: synchronize with it "
                  "before the window is freed",
                  window.number());
  }
  for (const auto& [gpu, kernels] : kernels_) {
    (void)poll_kernels();
    if (!kernels->busy(window)) continue;
    throw Refused(Errc::kInvalidUsage,
                  "window {} has operations of kernels that have not ended: synchronize with "
                  "their streams, and flush, before the window is freed",
                  window.number());
  }
}

void Messenger::close(Window& window) {
  if (carrier_ != nullptr) carrier_->remove(window);
  for (const auto& [gpu, kernels] : kernels_) kernels->forget(window);
  std::erase(with_queues_, &window);
  window.close();
}

void Messenger::free_window(Window& window, Deadline deadline) {
  require_usable(window);
  {
    const Lock lock(mutex_);
    require_idle(window);
    if (KernelQueues* queues = window.queues()) {
      // What was handed to links is flushed, so that nothing for it comes after the barrier.
      queues->drain(post_);
      queues->stop();
      for (const int peer : queues->carried_peers()) unflushed_.insert({window.number(), peer});
    }
  }
  flush_all(window);
  wake();
  bootstrap_.barrier(deadline);
  if (window.gpu() != nullptr) {
    // Memory that other processes have opened is freed after they closed it.
    window.close_reached();
    bootstrap_.barrier(deadline);
  }
  const Lock lock(mutex_);
  close(window);
}

void Messenger::release_window(Window& window) {
  require_usable(window);
  const Lock lock(mutex_);
  require_idle(window);
  close(window);
}

// ---- one operation ------------------------------------------------------------------------

void Messenger::require_usable(const Window& window) const {
  if (!window.closed()) return;
  throw Refused(Errc::kInvalidUsage, "window {} was freed", window.number());
}

bool Messenger::has_left(int peer) const {
  if (!failure_.any_left()) return false;
  const std::vector<int> left = failure_.left();
  return std::ranges::find(left, peer) != left.end();
}

void Messenger::require_peer(const OperationSpec& spec) const {
  const Window& window = *spec.window;
  if (spec.peer < 0 || spec.peer >= window.size()) {
    throw Refused(Errc::kInvalidArgument, "peer: {} is no rank of {}", spec.peer, window.size());
  }
}

void Messenger::validate(const OperationSpec& spec) {
  require_usable(*spec.window);
  require_peer(spec);
  Window& window = *spec.window;
  switch (spec.kind) {
    case OperationKind::kPut:
    case OperationKind::kGet: {
      const std::uint64_t there = window.part(spec.peer).bytes;
      if (spec.offset > there || spec.bytes > there - spec.offset) [[unlikely]] {
        throw Refused(Errc::kInvalidArgument,
                      "{}: offset {} and {} bytes leave the {} bytes of that rank's part",
                      describe(spec), spec.offset, spec.bytes, there);
      }
      const void* local =
          spec.kind == OperationKind::kPut ? spec.source : static_cast<void*>(spec.destination);
      if (local == nullptr && spec.bytes > 0) [[unlikely]] {
        throw Refused(Errc::kInvalidArgument, "{}: {}: NULL", describe(spec),
                      spec.kind == OperationKind::kPut ? "source" : "destination");
      }
      break;
    }
    case OperationKind::kSignal:
    case OperationKind::kWaitSignal: {
      if (spec.slot < 0 || spec.slot >= window.slots()) [[unlikely]] {
        throw Refused(Errc::kInvalidArgument, "slot: {} is not in 0 to {}", spec.slot,
                      window.slots() - 1);
      }
      if (spec.count == 0 || spec.count > Window::kMostSignals) [[unlikely]] {
        throw Refused(Errc::kInvalidArgument, "count: {} is not in 1 to {}", spec.count,
                      Window::kMostSignals);
      }
      break;
    }
    case OperationKind::kFlush: break;
  }
  if (spec.kind != OperationKind::kWaitSignal && has_left(spec.peer)) [[unlikely]] {
    throw left_error(spec);
  }
}

// Of a signal or a wait, the next of its counter.
void Messenger::require_countable(const OperationSpec& spec) {
  Window& window = *spec.window;
  const bool sends = spec.kind == OperationKind::kSignal;
  const std::uint8_t on_gpu = sends ? window.sent_on_gpu(spec.peer, spec.slot)
                                    : window.awaited_on_gpu(spec.peer, spec.slot);
  if (on_gpu != 0) [[unlikely]]
    throw counted(spec);
  require_fits(spec,
               sends ? window.sent(spec.peer, spec.slot) : window.awaited(spec.peer, spec.slot));
}

void Messenger::require_fits(const OperationSpec& spec, std::uint64_t now) {
  if (spec.count <= Window::kMostSignals - now) [[likely]]
    return;
  if (spec.kind == OperationKind::kSignal) {
    throw Refused(Errc::kInvalidArgument,
                  "{} by {}: {} were sent already, and a counter ends at {}", describe(spec),
                  spec.count, now, Window::kMostSignals);
  }
  throw Refused(Errc::kInvalidArgument, "{}: {} were waited for already, and a counter ends at {}",
                describe(spec), now, Window::kMostSignals);
}

std::uint64_t Messenger::count_wait(const OperationSpec& spec) {
  require_countable(spec);
  return spec.window->awaited(spec.peer, spec.slot) += spec.count;
}

std::uint64_t Messenger::count_signal(const OperationSpec& spec) {
  require_countable(spec);
  return spec.window->sent(spec.peer, spec.slot) += spec.count;
}

void Messenger::uncount_wait(const Operation& operation) {
  const OperationSpec& spec = operation.spec;
  spec.window->awaited(spec.peer, spec.slot) -= spec.count;
}

bool Messenger::check_wait(Operation& operation) {
  const OperationSpec& spec = operation.spec;
  if (spec.window->arrived(spec.peer, spec.slot) < operation.target) return false;
  operation.end();
  return true;
}

bool Messenger::run_mapped(const OperationSpec& spec) {
  Window& window = *spec.window;
  const Part& part = window.part(spec.peer);
  if (spec.kind == OperationKind::kSignal) {
    const std::uint64_t sent = count_signal(spec);
    if (!part.mapped) return false;
    window.set_counter(spec.peer, window.rank(), spec.slot, sent);
    return true;
  }
  if (!part.mapped) return false;
  switch (spec.kind) {
    case OperationKind::kPut:
      window.copy(part.data + spec.offset, spec.source, spec.bytes);
      return true;
    case OperationKind::kGet:
      window.copy(spec.destination, part.data + spec.offset, spec.bytes);
      return true;
    case OperationKind::kFlush: std::atomic_thread_fence(std::memory_order_seq_cst); return true;
    case OperationKind::kSignal:
    case OperationKind::kWaitSignal: break;
  }
  return false;
}

bool Messenger::begin(Operation& operation) {
  operation.rewind();
  const OperationSpec& spec = operation.spec;
  if (spec.kind == OperationKind::kWaitSignal) {
    operation.target = count_wait(spec);
    return check_wait(operation);
  }
  if (run_mapped(spec)) {
    operation.end();
    return true;
  }
  if (stopped_) {
    operation.fail(failure_.broken() ? failure_.error() : Error(Errc::kAborted, "stopped"), false);
    return true;
  }
  const std::pair<std::uint32_t, int> key{spec.window->number(), spec.peer};
  if (spec.kind == OperationKind::kFlush) {
    unflushed_.erase(key);
  } else if (spec.kind != OperationKind::kGet) {
    unflushed_.insert(key);
  }
  if (const transport::window::Gpu* gpu = spec.window->streams_gpu(); gpu != nullptr) {
    const void* local =
        spec.kind == OperationKind::kPut ? spec.source : static_cast<void*>(spec.destination);
    operation.spec.on_gpu = is_on_gpu(gpu->cuda(), local);
  }
  carrier_->start(operation);
  return operation.ended();
}

void Messenger::begin_counted(Operation& operation) {
  if (stopped_ || operation.spec.kind != OperationKind::kSignal) {
    (void)begin(operation);
    return;
  }
  unflushed_.insert({operation.spec.window->number(), operation.spec.peer});
  carrier_->start(operation);
}

void Messenger::raise(const Operation& operation) {
  const Error& fault = *operation.fault;
  if (operation.refused) throw Refused(fault.code(), "{}", fault.what());
  throw Error(fault);
}

void Messenger::run(const OperationSpec& spec) {
  validate(spec);
  Window& window = *spec.window;
  const bool deferred = deferred_.load(std::memory_order_acquire) != 0;
  if (spec.kind == OperationKind::kWaitSignal) {
    Operation wait(spec);
    if (deferred) [[unlikely]] {
      const Lock lock(mutex_);
      wait.target = count_wait(spec);
    } else {
      wait.target = count_wait(spec);
    }
    try {
      await(wait.spec, [&] { return check_wait(wait); });
    } catch (const Refused&) {
      uncount_wait(wait);
      throw;
    } catch (const Error& error) {
      stop(error);
      throw;
    }
    return;
  }
  if (window.part(spec.peer).mapped && !deferred) [[likely]] {
    (void)run_mapped(spec);
    return;
  }
  Operation operation(spec);
  {
    ++wanted_;
    const Lock lock(mutex_);
    --wanted_;
    (void)begin(operation);
    // What it writes may be on its way before this returns.
    (void)poll_locked();
  }
  try {
    await(operation.spec, [&] { return operation.ended(); });
  } catch (const Error& error) {
    stop(error);
    throw;
  }
  if (operation.fault.has_value()) raise(operation);
}

void Messenger::start(const OperationSpec& spec, Ended ended) {
  validate(spec);
  const bool mapped = spec.window->part(spec.peer).mapped;
  if (spec.kind != OperationKind::kWaitSignal && mapped &&
      deferred_.load(std::memory_order_acquire) == 0) {
    (void)run_mapped(spec);
    ended(nullptr);
    return;
  }
  need_thread();
  auto operation = std::make_unique<Operation>(spec);
  {
    ++wanted_;
    const Lock lock(mutex_);
    --wanted_;
    (void)begin(*operation);
    if (!operation->ended()) {
      started_.push_back({std::move(operation), nullptr, std::move(ended)});
      (void)poll_locked();
      wake();
      return;
    }
  }
  if (operation->fault.has_value() && operation->refused) raise(*operation);
  ended(operation->fault.has_value() ? &*operation->fault : nullptr);
}

void Messenger::flush_all(Window& window) {
  require_usable(window);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::vector<int> peers;
  {
    const Lock lock(mutex_);
    for (const auto& [number, peer] : unflushed_) {
      if (number == window.number()) peers.push_back(peer);
    }
  }
  for (const int peer : peers) {
    OperationSpec spec;
    spec.kind = OperationKind::kFlush;
    spec.window = &window;
    spec.peer = peer;
    run(spec);
  }
}

std::uint64_t Messenger::arrived(Window& window, int source, int slot) {
  OperationSpec spec;
  spec.kind = OperationKind::kWaitSignal;
  spec.window = &window;
  spec.peer = source;
  spec.slot = slot;
  spec.count = 1;
  validate(spec);
  (void)drive();
  return window.arrived(source, slot);
}

// ---- batches ------------------------------------------------------------------------------

void Messenger::begin_batch(Batch& batch) {
  if (batch.running()) {
    throw Refused(Errc::kInvalidUsage,
                  "the batch was launched, and has not ended: wait for it before the next launch");
  }
  // Before anything of it was done.
  for (const Operation& operation : batch.operations_) validate(operation.spec);
  batch.next_ = 0;
  batch.begun_ = false;
  batch.running_.store(true, std::memory_order_relaxed);
}

const Operation* Messenger::failed(const Batch& batch) {
  const auto found = std::ranges::find_if(
      batch.operations_, [](const Operation& operation) { return operation.fault.has_value(); });
  return found == batch.operations_.end() ? nullptr : &*found;
}

bool Messenger::advance(Batch& batch) {
  while (batch.next_ < batch.operations_.size()) {
    Operation& operation = batch.operations_[batch.next_];
    const OperationKind kind = operation.spec.kind;
    if (!batch.begun_) {
      batch.begun_ = true;
      try {
        (void)begin(operation);
      } catch (const Refused& refused) {
        operation.fail(refused, true);
      }
    }
    if (!operation.ended()) {
      if (kind == OperationKind::kFlush) return false;
      if (kind == OperationKind::kWaitSignal && !check_wait(operation)) return false;
    }
    if (operation.fault.has_value()) {
      skip_rest(batch);
      break;
    }
    batch.begun_ = false;
    ++batch.next_;
  }
  return std::ranges::all_of(batch.operations_,
                             [](const Operation& operation) { return operation.ended(); });
}

void Messenger::skip_rest(Batch& batch) {
  const Operation& bad = batch.operations_[batch.next_];
  for (std::size_t k = batch.next_ + 1; k < batch.operations_.size(); ++k) {
    batch.operations_[k].rewind();
    batch.operations_[k].fail(*bad.fault, bad.refused);
  }
  batch.next_ = batch.operations_.size();
}

void Messenger::run(Batch& batch) {
  begin_batch(batch);
  OperationSpec at;  // what it waits for now
  const auto advance_now = [&] {
    ++wanted_;
    const Lock lock(mutex_);
    --wanted_;
    const std::size_t before = batch.next_;
    if (advance(batch)) return true;
    const std::size_t last = batch.operations_.size() - 1;
    at = batch.operations_[std::min(batch.next_, last)].spec;
    // What was started goes on to its end, whatever becomes of its peer.
    if (batch.next_ > last) at.kind = OperationKind::kFlush;
    if (batch.next_ != before) await_began_.reset();
    return false;
  };
  for (;;) {
    try {
      await(at, advance_now);
      break;
    } catch (const Refused& refused) {
      // The wait at which it stands will not end.
      const Lock lock(mutex_);
      batch.operations_[batch.next_].fail(refused, true);
    } catch (const Error& error) {
      stop(error);
      batch.running_.store(false, std::memory_order_release);
      throw;
    }
  }
  batch.running_.store(false, std::memory_order_release);
  if (const Operation* operation = failed(batch)) raise(*operation);
}

void Messenger::start(Batch& batch, Ended ended) {
  begin_batch(batch);
  need_thread();
  const Operation* fault = nullptr;
  {
    ++wanted_;
    const Lock lock(mutex_);
    --wanted_;
    if (!advance(batch)) {
      deferred_.fetch_add(1, std::memory_order_release);
      started_.push_back({nullptr, &batch, std::move(ended)});
      (void)poll_locked();
      wake();
      return;
    }
    fault = failed(batch);
  }
  batch.running_.store(false, std::memory_order_release);
  if (fault != nullptr && fault->refused) raise(*fault);
  ended(fault == nullptr ? nullptr : &*fault->fault);
}

// ---- streams ------------------------------------------------------------------------------

void Messenger::add_streams(transport::window::Gpu& gpu) {
  if (const auto [it, fresh] = streams_.try_emplace(&gpu); fresh) {
    try {
      it->second = std::make_unique<StreamCalls>(gpu);
    } catch (const Error& error) {
      // The host's calls work without.
      log::info(log::kP2p, "streams cannot use windows: {}", error.what());
    }
  }
}

StreamCalls& Messenger::streams_of(const Window& window, const std::function<std::string()>& what) {
  transport::window::Gpu* gpu = window.streams_gpu();
  const auto found = streams_.find(gpu);
  if (found == streams_.end() || found->second == nullptr) {
    throw Refused(Errc::kInvalidUsage, "{}: stream: {} has no 64-bit memory operations of streams",
                  what(), gpu->name());
  }
  return *found->second;
}

void Messenger::open_to_streams(const OperationSpec& spec, transport::window::CuStream stream) {
  Window& window = *spec.window;
  try {
    if (const transport::window::Gpu* gpu = window.streams_gpu(); gpu == nullptr) {
      transport::window::Gpu& of_stream = options_.gpu_of(stream);
      add_streams(of_stream);
      window.let_streams_use(of_stream);
    } else {
      transport::window::CuContext context = nullptr;
      gpu->cuda().check(gpu->cuda().stream_context(stream, &context), "cuStreamGetCtx");
      if (context != gpu->context()) {
        throw Error(Errc::kInvalidUsage, "it is not of {}, whose streams use the window",
                    gpu->name());
      }
    }
  } catch (const Error& error) {
    throw Refused(error.code(), "{}: stream: {}", describe(spec), error.what());
  }
}

StreamCalls& Messenger::streams_of(const OperationSpec& spec) {
  const Window& window = *spec.window;
  const bool copies = spec.kind == OperationKind::kPut || spec.kind == OperationKind::kGet;
  if (copies && spec.bytes > 0 && window.part(spec.peer).mapped &&
      window.data_on_gpu(spec.peer) == nullptr) {
    throw Refused(Errc::kInvalidUsage,
                  "{}: stream: the window of rank {} is memory that is not pinned, which streams "
                  "cannot use (cudaHostRegister, cudaHostAlloc)",
                  describe(spec), spec.peer);
  }
  StreamCalls& streams = streams_of(window, [&] { return describe(spec); });
  const void* local = spec.kind == OperationKind::kPut   ? spec.source
                      : spec.kind == OperationKind::kGet ? static_cast<void*>(spec.destination)
                                                         : nullptr;
  if (spec.bytes > 0 && local != nullptr && !streams.accessible(local)) {
    throw Refused(Errc::kInvalidArgument,
                  "{}: {}: {} is neither memory of a GPU nor pinned; a stream cannot use it",
                  describe(spec), spec.kind == OperationKind::kPut ? "source" : "destination",
                  local);
  }
  return streams;
}

void Messenger::enqueue(std::span<const OperationSpec> specs, transport::window::CuStream stream) {
  enqueue(specs, stream, nullptr);
}

std::string Messenger::describe_message(const Message& message) {
  return fmt::format("message {} rank {}, window {}, slot {}", message.sends ? "to" : "from",
                     message.peer, message.window->number(), message.slot);
}

void Messenger::enqueue(const Message& message, transport::window::CuStream stream) {
  const QueueCall& known = prepare(message);
  DeviceCall call = known.call;
  call.kind = message.sends ? DeviceCall::Kind::kSend : DeviceCall::Kind::kReceive;
  call.peer = message.peer;
  call.slot = message.slot;
  call.local = message.memory;
  call.bytes = message.bytes;
  // Without the lock: where the driver's queue is full this waits for kernels, which may wait for
  // the thread.
  launch(*known.kernels, *message.window->gpu(), call, stream);
  // Where no link carries, the thread has nothing to do for it.
  if (message.window->queues()->carried()) wake();
}

const QueueCall& Messenger::prepare(const Message& message) {
  Window& window = *message.window;
  const auto what = [&] { return describe_message(message); };
  require_usable(window);
  if (window.queues() == nullptr) {
    throw Refused(Errc::kInvalidUsage, "{}: the window has no queues", what());
  }
  if (window.gpu() == nullptr) {
    throw Refused(Errc::kInvalidUsage,
                  "{}: stream: the queues are in the host's memory, which kernels of a GPU cannot "
                  "use; make them in memory of a GPU",
                  what());
  }
  if (message.peer < 0 || message.peer >= window.size()) {
    throw Refused(Errc::kInvalidArgument, "peer: {} is no rank of {}", message.peer, window.size());
  }
  if (message.slot < 0 || message.slot >= window.slots()) {
    throw Refused(Errc::kInvalidArgument, "slot: {} is not in 0 to {}", message.slot,
                  window.slots() - 1);
  }
  if (message.sends && has_left(message.peer)) {
    throw Refused(Errc::kPeerLost, "{}: rank {} left the communicator", what(), message.peer);
  }
  KernelQueues& queues = *window.queues();
  // The usual call takes no lock and asks the driver nothing.
  const bool known = message.bytes == 0 || queues.is_accessible(message.memory, message.bytes);
  if (queues.call().has_value() && known && !failure_.broken()) [[likely]] {
    return *queues.call();
  }
  need_thread();
  ++wanted_;
  const Lock lock(mutex_);
  --wanted_;
  const StreamCalls& streams = streams_of(window, what);
  if (stopped_) throw failure_.broken() ? failure_.error() : Error(Errc::kAborted, "stopped");
  if (streams.kernels() == nullptr) {
    throw Refused(Errc::kInvalidUsage, "{}: stream: it needs kernels, and this build has none",
                  what());
  }
  if (!known) {
    if (!streams.accessible(message.memory)) {
      throw Refused(Errc::kInvalidArgument,
                    "{}: {}: {} is neither memory of a GPU nor pinned; a stream cannot use it",
                    what(), message.sends ? "source" : "destination", message.memory);
    }
    queues.add_accessible(message.memory, message.bytes);
  }
  if (!queues.call().has_value()) {
    const rwDeviceWindow handle = kernels_of(window).handle(window, options_.timeout());
    QueueCall& made = queues.call().emplace();
    made.call.window = handle;
    made.kernels = streams.kernels();
    wake();
  }
  return *queues.call();
}

template <typename Ready>
void Messenger::await_streams(Ready&& ready) {
  while (!ready()) {
    (void)poll_locked();
    if (stopped_) throw failure_.broken() ? failure_.error() : Error(Errc::kAborted, "stopped");
    std::this_thread::yield();
  }
}

void Messenger::enqueue(std::span<const OperationSpec> specs, transport::window::CuStream stream,
                        StreamCalls::Trigger* trigger, Batch* batch) {
  for (const OperationSpec& spec : specs) validate(spec);
  if (specs.empty()) return;
  need_thread();
  ++wanted_;
  const Lock lock(mutex_);
  --wanted_;
  StreamCalls* streams = nullptr;
  const Window* opened = nullptr;
  for (const OperationSpec& spec : specs) {
    if (spec.window->gpu() == nullptr && spec.window != opened) open_to_streams(spec, stream);
    opened = spec.window;
    StreamCalls& its = streams_of(spec);
    if (streams != nullptr && streams != &its) {
      throw Refused(Errc::kInvalidUsage, "{}: a batch's windows are on one GPU", describe(spec));
    }
    streams = &its;
  }
  if (stopped_) {
    throw failure_.broken() ? failure_.error() : Error(Errc::kAborted, "stopped");
  }
  if (streams->captures(stream)) {
    if (trigger != nullptr) {
      throw Refused(Errc::kInvalidUsage,
                    "stream: it is captured, and a graph would wait for one trigger only once");
    }
    capture(specs, *streams, stream, batch);
    return;
  }
  if (trigger == nullptr && (batch != nullptr || options_.stream_kernels)) {
    std::shared_ptr<const StreamBatch> prepared = batch != nullptr ? batch->on_stream_ : nullptr;
    if (prepared == nullptr) prepared = streams->prepare(specs);
    if (batch != nullptr) batch->on_stream_ = prepared;
    if (prepared != nullptr) {
      launch_batch(*prepared, *streams, stream);
      return;
    }
  }
  // Before any is counted.
  for (const OperationSpec& spec : specs) {
    if (spec.kind == OperationKind::kSignal || spec.kind == OperationKind::kWaitSignal) {
      require_countable(spec);
    }
  }
  await_streams([&] {
    return streams->has_room() && !streams->is_far_ahead() &&
           (trigger == nullptr || streams->has_trigger());
  });
  streams->begin(stream);
  if (trigger != nullptr) *trigger = streams->await_trigger(*specs.front().window);
  for (const OperationSpec& spec : specs) {
    if (!streams->has_room()) {
      // What is held now must reach the GPU first, or it would never end.
      streams->finish();
      await_streams([&] { return streams->has_room(); });
    }
    std::uint64_t target = 0;
    if (spec.kind == OperationKind::kWaitSignal) target = count_wait(spec);
    if (spec.kind == OperationKind::kSignal) target = count_signal(spec);
    streams->add(spec, target);
  }
  streams->finish();
  // Deadlines are looked after from time to time; a link is asked at any time.
  if (streams->asks()) wake();
}

void Messenger::capture(std::span<const OperationSpec> specs, StreamCalls& streams,
                        transport::window::CuStream stream, Batch* batch) {
  if (streams.kernels() == nullptr) {
    throw Refused(Errc::kInvalidUsage,
                  "{}: stream: it is captured, which needs kernels, and this build has none",
                  describe(specs.front()));
  }
  for (const OperationSpec& spec : specs) {
    if (spec.window->gpu() == nullptr) {
      throw Refused(Errc::kInvalidUsage,
                    "{}: stream: it is captured, and the window is in the host's memory, where "
                    "graphs do not count signals; make it in memory of a GPU",
                    describe(spec));
    }
    if (spec.kind != OperationKind::kFlush || spec.window->part(spec.peer).mapped) continue;
    throw Refused(
        Errc::kInvalidUsage,
        "{}: stream: it is captured, and in a graph nothing tells when what a link carries "
        "has arrived",
        describe(spec));
  }
  const bool mapped = std::ranges::all_of(specs, [](const OperationSpec& spec) {
    return spec.kind == OperationKind::kWaitSignal || spec.window->part(spec.peer).mapped;
  });
  if (batch != nullptr && mapped && !reason_against_kernels(specs).has_value()) {
    const DeviceBatch& prepared = prepare(*batch, specs);
    for (const OperationSpec& spec : specs) {
      if (spec.kind != OperationKind::kPut) kernels_of(*spec.window).count_on_gpu(spec);
    }
    streams.capture(prepared, specs, stream);
    wake();
    return;
  }
  for (const OperationSpec& spec : specs) {
    KernelCalls& kernels = kernels_of(*spec.window);
    const rwDeviceWindow& device = kernels.handle(*spec.window, options_.timeout());
    if (spec.kind == OperationKind::kSignal || spec.kind == OperationKind::kWaitSignal) {
      kernels.count_on_gpu(spec);
    }
    streams.capture(spec, device, stream);
  }
  wake();
}

std::vector<OperationSpec> Messenger::specs_of(const Batch& batch) {
  if (batch.running()) {
    throw Refused(Errc::kInvalidUsage,
                  "the batch was launched, and has not ended: wait for it before the next launch");
  }
  std::vector<OperationSpec> specs;
  specs.reserve(batch.operations_.size());
  for (const Operation& operation : batch.operations_) specs.push_back(operation.spec);
  return specs;
}

void Messenger::enqueue(Batch& batch, transport::window::CuStream stream) {
  if (launch_again(batch, stream)) return;
  enqueue(specs_of(batch), stream, nullptr, &batch);
}

bool Messenger::launch_again(const Batch& batch, transport::window::CuStream stream) {
  if (batch.on_stream_ == nullptr || batch.running() || failure_.any_left() || failure_.broken()) {
    return false;
  }
  const StreamBatch& prepared = *batch.on_stream_;
  for (const Window* window : prepared.windows) require_usable(*window);
  ++wanted_;
  const Lock lock(mutex_);
  --wanted_;
  StreamCalls& streams = *streams_.at(prepared.windows.front()->gpu());
  if (stopped_ || streams.captures(stream)) return false;
  launch_batch(prepared, streams, stream);
  return true;
}

void Messenger::launch_batch(const StreamBatch& batch, StreamCalls& streams,
                             transport::window::CuStream stream) {
  // Before any is counted.
  for (const OperationSpec& spec : batch.signals) require_countable(spec);
  for (const OperationSpec& spec : batch.waits) require_countable(spec);
  await_streams(
      [&] { return streams.has_room(1 + batch.waits.size()) && !streams.is_far_ahead(); });
  std::vector<std::uint64_t> values;
  values.reserve(batch.signals.size() + batch.waits.size());
  for (const OperationSpec& spec : batch.signals) values.push_back(count_signal(spec));
  for (const OperationSpec& spec : batch.waits) values.push_back(count_wait(spec));
  streams.launch_batch(batch, values, stream);
}

StreamCalls::Trigger Messenger::arm(const Batch& batch, transport::window::CuStream stream) {
  const std::vector<OperationSpec> specs = specs_of(batch);
  if (specs.empty()) throw Refused(Errc::kInvalidUsage, "the batch has no operations");
  StreamCalls::Trigger trigger;
  enqueue(specs, stream, &trigger);
  return trigger;
}

bool Messenger::streams_busy() const {
  return std::ranges::any_of(
      streams_, [](const auto& entry) { return entry.second != nullptr && entry.second->busy(); });
}

bool Messenger::poll_streams() {
  bool moved = false;
  bool asked =
      std::ranges::any_of(kernels_, [](const auto& entry) { return entry.second->watched(); });
  for (const auto& entry : streams_) {
    StreamCalls* streams = entry.second.get();
    if (streams == nullptr || !streams->busy()) continue;
    moved |= streams->poll([this](Operation& operation)
                               RW_REQUIRES(mutex_) { begin_counted(operation); });
    if (stopped_) {
      streams->release();
      continue;
    }
    std::optional<Error> fault = streams->fault();
    if (!fault.has_value() && stream_pacer_.due()) {
      fault = streams->overdue(options_.timeout(), [this](int peer) { return has_left(peer); });
    }
    asked |= streams->asks();
    if (fault.has_value()) break_with(*fault);
  }
  asked_.store(asked, std::memory_order_relaxed);
  return moved;
}

void Messenger::break_with(const Error& error) {
  // No call of the program's waits for it: the next one tells.
  options_.on_error(error);
  stop_locked(failure_.broken() ? failure_.error() : error);
}

// ---- kernels ------------------------------------------------------------------------------

rwDeviceWindow Messenger::device_window(Window& window) {
  require_usable(window);
  need_thread();
  ++wanted_;
  const Lock lock(mutex_);
  --wanted_;
  if (stopped_) {
    throw failure_.broken() ? failure_.error() : Error(Errc::kAborted, "stopped");
  }
  const rwDeviceWindow handle = kernels_of(window).handle(window, options_.timeout());
  wake();
  return handle;
}

rwDeviceBatch Messenger::device_batch(Batch& batch) {
  const std::vector<OperationSpec> specs = specs_of(batch);
  if (specs.empty()) throw Refused(Errc::kInvalidUsage, "the batch has no operations");
  const transport::window::Gpu* gpu = specs.front().window->gpu();
  for (const OperationSpec& spec : specs) {
    validate(spec);
    if (spec.window->gpu() != gpu) {
      throw Refused(Errc::kInvalidUsage, "{}: a batch's windows are on one GPU", describe(spec));
    }
    if (gpu != nullptr && spec.kind == OperationKind::kPut && spec.bytes > 0 &&
        !is_known(gpu->cuda(), spec.source)) {
      throw Refused(Errc::kInvalidArgument,
                    "{}: source: {} is neither memory of a GPU nor pinned; a kernel cannot use it",
                    describe(spec), static_cast<const void*>(spec.source));
    }
  }
  if (const auto reason = reason_against_kernels(specs); reason.has_value()) {
    throw Refused(Errc::kInvalidUsage, "a batch that kernels launch {}", *reason);
  }
  need_thread();
  ++wanted_;
  const Lock lock(mutex_);
  --wanted_;
  if (stopped_) throw failure_.broken() ? failure_.error() : Error(Errc::kAborted, "stopped");
  const rwDeviceBatch handle = prepare(batch, specs).handle;
  wake();
  return handle;
}

const DeviceBatch& Messenger::prepare(Batch& batch, std::span<const OperationSpec> specs) {
  if (batch.on_device_ == nullptr) {
    batch.on_device_ = kernels_of(*specs.front().window).batch(specs, options_.timeout());
  }
  return *batch.on_device_;
}

KernelCalls& Messenger::kernels_of(const Window& window) {
  std::unique_ptr<KernelCalls>& kernels = kernels_[window.gpu()];
  if (kernels == nullptr) kernels = std::make_unique<KernelCalls>(window.gpu());
  return *kernels;
}

bool Messenger::poll_queues() {
  bool moved = false;
  for (const Window* window : with_queues_) moved |= window->queues()->poll(post_);
  return moved;
}

bool Messenger::poll_kernels() {
  bool moved = false;
  for (const auto& entry : kernels_) {
    KernelCalls& kernels = *entry.second;
    moved |= kernels.poll([this](Operation& operation) RW_REQUIRES(mutex_) {
      const OperationSpec& spec = operation.spec;
      validate(spec);
      if (spec.kind == OperationKind::kSignal) {
        // Kernels do not count what a link carries.
        std::uint64_t& sent = spec.window->sent(spec.peer, spec.slot);
        require_fits(spec, sent);
        sent += spec.count;
      }
      begin_counted(operation);
    });
    if (stopped_) continue;
    if (const std::optional<Error> fault = kernels.fault()) break_with(*fault);
  }
  return moved;
}

// ---- waiting ------------------------------------------------------------------------------

// Who waits polls meanwhile, and not the messenger's thread.
class Messenger::Driving {
 public:
  explicit Driving(Messenger& messenger) : messenger_(messenger) { ++messenger_.driving_; }
  ~Driving() { --messenger_.driving_; }
  Driving(const Driving&) = delete;
  Driving& operator=(const Driving&) = delete;

 private:
  Messenger& messenger_;
};

void Messenger::help(const std::function<bool()>& done, Clock::time_point last) {
  struct Hook final : executor::WaitHook {
    explicit Hook(Messenger& its) : messenger(its) {}
    bool poll() override { return messenger.drive(); }
    void stalled(std::chrono::nanoseconds /*since_progress*/) override {}
    Messenger& messenger;
  };
  if (done()) return;
  const Driving driving(*this);
  Hook hook(*this);
  executor::Waiter waiter(options_.policy, hook);
  waiter.restart();
  (void)drive();  // also for who only asks
  while (!done() && Clock::now() < last) waiter.idle(0);
}

template <typename Done>
void Messenger::await(const OperationSpec& spec, Done&& done) {
  if (done()) return;
  const Driving driving(*this);
  struct Awaiting {
    explicit Awaiting(Messenger& its) : messenger(its) {}
    ~Awaiting() { messenger.awaited_ = nullptr; }
    Awaiting(const Awaiting&) = delete;
    Awaiting& operator=(const Awaiting&) = delete;
    Messenger& messenger;
  };
  const Awaiting awaiting(*this);
  awaited_ = &spec;
  await_began_.reset();
  waiter_.restart();
  look_pacer_.hold_off();
  while (!done()) waiter_.idle(0);
}

bool Messenger::poll() {
  failure_.check();
  const bool moved = thread_.joinable() && drive();
  if (!moved) return false;
  if (awaited_->kind == OperationKind::kWaitSignal) {
    // What moves may be of other operations: this one's time goes on.
    if (look_pacer_.due()) look(std::chrono::nanoseconds(0));
  } else {
    await_began_.reset();
  }
  return true;
}

void Messenger::stalled(std::chrono::nanoseconds since_progress) { look(since_progress); }

void Messenger::look(std::chrono::nanoseconds waited) {
  const Clock::time_point now = Clock::now();
  if (!await_began_.has_value()) await_began_ = now - waited;
  waited = now - *await_began_;
  const OperationSpec& spec = *awaited_;
  if (waited > kInterruptPeriod && now >= next_ask_) {
    next_ask_ = now + kInterruptPeriod;
    if (interrupted()) {
      throw Error(Errc::kInterrupted, "{}: rank {} was interrupted by its program", describe(spec),
                  bootstrap_.rank());
    }
  }
  if (spec.kind == OperationKind::kWaitSignal && waited > kLeftGrace && has_left(spec.peer)) {
    throw left_error(spec);
  }
  const std::chrono::nanoseconds limit = options_.timeout();
  if (limit.count() > 0 && waited > limit) {
    throw Error(Errc::kTimeout, "{}: rank {} has waited for {:.3g} s", describe(spec),
                bootstrap_.rank(), std::chrono::duration<double>(waited).count());
  }
}

void Messenger::finish() {
  {
    const Lock lock(mutex_);
    if (!stopped_) {
      for (const Window* window : with_queues_) window->queues()->drain(post_);
    }
  }
  // Where it waits for nothing in particular.
  for (const std::unique_ptr<Window>& window : windows_) {
    if (window->closed()) continue;
    OperationSpec spec;
    spec.kind = OperationKind::kFlush;
    spec.window = window.get();
    spec.peer = bootstrap_.rank();
    try {
      await(spec, [&] {
        const Lock lock(mutex_);
        return started_.empty() && !streams_busy();
      });
      flush_all(*window);
    } catch (const Refused&) {
      // A rank that left earlier needs nothing any more.
    } catch (const Error& error) {
      stop(error);
      throw;
    }
  }
  const Deadline patience = deadline_after(options_.peer_loss_time);
  while (true) {
    (void)drive();
    const Lock lock(mutex_);
    if (stopped_ || carrier_ == nullptr) return;
    if (carrier_->drained() || Clock::now() >= patience) return;
  }
}

void Messenger::leave() {
  const Lock lock(mutex_);
  if (!stopped_ && carrier_ != nullptr) carrier_->leave();
}

// ---- progress -----------------------------------------------------------------------------

bool Messenger::drive() {
  ++wanted_;
  const Lock lock(mutex_);
  --wanted_;
  return poll_locked();
}

bool Messenger::poll_locked() {
  if (stopped_) {
    (void)poll_streams();
    (void)poll_kernels();
    return false;
  }
  if (failure_.broken()) {
    stop_locked(failure_.error());
    return false;
  }
  bool moved = false;
  try {
    // Before the links, which then take what kernels wrote in the same turn.
    moved = poll_queues();
    moved |= carrier_ != nullptr && carrier_->poll();
  } catch (const Error& error) {
    if (!after_error(error)) return false;
    moved = true;
  }
  moved |= drop_left();
  moved |= poll_streams();
  moved |= poll_kernels();
  moved |= end_started();
  return moved;
}

bool Messenger::end_started() {
  bool moved = false;
  for (auto it = started_.begin(); it != started_.end();) {
    bool ended = false;
    const Operation* fault = nullptr;
    if (it->batch != nullptr) {
      ended = advance(*it->batch);
      if (ended) fault = failed(*it->batch);
    } else {
      Operation& operation = *it->operation;
      ended = operation.ended() ||
              (operation.spec.kind == OperationKind::kWaitSignal && check_wait(operation));
      if (operation.fault.has_value()) fault = &operation;
    }
    if (!ended) {
      ++it;
      continue;
    }
    if (it->batch != nullptr) {
      it->batch->running_.store(false, std::memory_order_release);
      deferred_.fetch_sub(1, std::memory_order_release);
    }
    it->ended(fault == nullptr ? nullptr : &*fault->fault);
    it = started_.erase(it);
    moved = true;
  }
  return moved;
}

bool Messenger::drop_left() {
  if (!failure_.any_left()) return false;
  const Clock::time_point now = Clock::now();
  if (!left_seen_.has_value()) left_seen_ = now;
  if (now - *left_seen_ < kLeftGrace || !left_pacer_.due()) return false;
  bool moved = false;
  for (const int peer : failure_.left()) {
    if (dropped_.insert(peer).second && carrier_ != nullptr) {
      carrier_->drop(peer, Error(Errc::kPeerLost, "rank {} left the communicator", peer));
      moved = true;
    }
    const auto fail = [&](Operation& operation) {
      if (operation.spec.peer != peer || operation.spec.kind != OperationKind::kWaitSignal) return;
      if (check_wait(operation)) return;
      operation.fail(left_error(operation.spec), true);
      moved = true;
    };
    for (Started& one : started_) {
      if (one.operation != nullptr) fail(*one.operation);
      if (one.batch != nullptr && one.batch->begun_) fail(one.batch->operations_[one.batch->next_]);
    }
  }
  return moved;
}

bool Messenger::after_error(const Error& error) {
  // A link that broke says little: the watch over the ranks soon knows who died, or left.
  const Deadline patience = deadline_after(options_.peer_loss_time);
  while (!failure_.broken()) {
    bool any_new = false;
    for (const int peer : failure_.left()) {
      if (!dropped_.insert(peer).second) continue;
      any_new = true;
      carrier_->drop(peer, Error(Errc::kPeerLost, "rank {} left the communicator", peer));
    }
    if (any_new) return true;
    if (Clock::now() > patience) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!failure_.broken()) options_.on_error(error);
  stop_locked(failure_.broken() ? failure_.error() : error);
  return false;
}

void Messenger::stop(const Error& error) {
  const Lock lock(mutex_);
  stop_locked(error);
}

void Messenger::stop_locked(const Error& error) {
  stopped_ = true;
  if (carrier_ != nullptr) carrier_->fail_all(error);
  for (Started& one : started_) {
    if (one.batch != nullptr) {
      for (Operation& operation : one.batch->operations_) operation.fail(error, false);
      one.batch->running_.store(false, std::memory_order_release);
      deferred_.fetch_sub(1, std::memory_order_release);
    }
    one.ended(&error);
  }
  started_.clear();
  for (const auto& entry : streams_) {
    if (entry.second != nullptr) entry.second->release();
  }
  for (const auto& entry : kernels_) entry.second->abort();
}

void Messenger::need_thread() {
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
}

void Messenger::wake() noexcept {
  if (awake_.exchange(true, std::memory_order_relaxed)) return;
  const std::lock_guard lock(sleep_mutex_);
  sleep_.notify_one();
}

void Messenger::rest(std::chrono::nanoseconds idle) {
  if (idle < kBusy) {
    std::this_thread::yield();
    return;
  }
  std::unique_lock lock(sleep_mutex_);
  const bool naps = idle < kBusy + kNapsFor || asked_.load(std::memory_order_relaxed);
  sleep_.wait_for(lock, naps ? kNap : kSleep,
                  [&] { return awake_.load(std::memory_order_relaxed) || ends_.load(); });
}

void Messenger::work() {
  Clock::time_point last_moved = Clock::now();
  while (!ends_) {
    if (driving_.load(std::memory_order_relaxed) > 0) {
      // Who waits polls; a second one would only take its core.
      std::this_thread::sleep_for(kNap);
      continue;
    }
    while (wanted_.load(std::memory_order_relaxed) > 0) std::this_thread::yield();
    bool moved = false;
    bool urgent = false;
    {
      const Lock lock(mutex_);
      moved = poll_locked();
      // Streams and kernels that need no link are only watched: what they have passed frees words,
      // and there is no hurry. Who polled for that would keep a processor busy as long as the
      // program uses them.
      urgent = carrier_ != nullptr || !started_.empty() || asked_.load(std::memory_order_relaxed);
    }
    const Clock::time_point now = Clock::now();
    if (awake_.exchange(false, std::memory_order_relaxed) || moved) last_moved = now;
    if (!urgent) {
      rest(kBusy + kNapsFor);
    } else if (!moved) {
      rest(now - last_moved);
    }
  }
}

}  // namespace ropewalk::message
