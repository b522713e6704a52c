#include "capi/mp/engine.h"

#include <sched.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "capi/mp/failure.h"
#include "capi/mp/memory_kind.h"
#include "ropewalk/compat/mp.h"

namespace ropewalk::mp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// Two words each.
constexpr int kMostStreams = 64;

// Of calls on a GPU's streams, of which Ropewalk takes 4,096 at a time.
constexpr std::size_t kMostHeld = 1'000;

// How long a call that waits polls without giving the CPU away, and then while giving it away,
// before it sleeps between two polls.
constexpr microseconds kSpin{20};
constexpr microseconds kYield{2'000};
constexpr microseconds kNap{50};
// How long the thread polls after something moved.
constexpr microseconds kBusy{200};
constexpr milliseconds kLook{10};

// "10min" in seconds, as settings are shown.
Clock::duration duration_of(const std::string& text) {
  std::size_t end = 0;
  const double number = std::stod(text, &end);
  const std::string unit = text.substr(end);
  const std::map<std::string, double> seconds{{"", 1},    {"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3},
                                              {"s", 1.0}, {"min", 60},  {"h", 3600}};
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(number * seconds.at(unit)));
}

Clock::duration timeout_setting() {
  char* text = nullptr;
  check(rwSettingsDescribe(&text));
  const std::unique_ptr<char, void (*)(char*)> owned(text, rwFreeText);
  for (const auto& setting : nlohmann::json::parse(text)) {
    if (setting.at("name") != "ROPEWALK_TIMEOUT") continue;
    const auto& value = setting.at("value");
    return duration_of(value.is_string() ? value.get<std::string>() : value.dump());
  }
  throw Failure(MP_FAILURE, "the library has no setting TIMEOUT");
}

void pause_or_sleep(Clock::duration waited) {
  if (waited < kSpin) return;
  if (waited < kYield) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(kNap);
  }
}

}  // namespace

void check(rwResult_t result) {
  if (result == rwSuccess) return;
  const char* const text = rwGetLastError(nullptr);
  const std::string words =
      std::string(rwGetErrorString(result)) + ": " + (text == nullptr ? "" : text);
  const bool nothing_done = result == rwInvalidArgument || result == rwInvalidUsage;
  throw Failure(nothing_done ? EINVAL : MP_FAILURE, words);
}

void require_posted(const mp_request& request) {
  require(request.state != State::kPrepared, "req: prepared, and not posted");
}

void require_waitable(const mp_request& request) {
  require_posted(request);
  require(!request.releases_itself, "req: a put with MP_PUT_NOWAIT cannot be waited for");
  require(!request.told_to_wait, "req: a stream or kernel waits for it already");
}

// ---- beginning and end --------------------------------------------------------------------

Engine::Engine(const std::function<rwResult_t(rwComm_t*)>& join, const Arguments& arguments) {
  check(join(&comm_));
  try {
    check(rwCommUserRank(comm_, &rank_));
    check(rwCommCount(comm_, &size_));
    timeout_ = timeout_setting();
    check_arguments(arguments);
    make_channels(arguments);
    kernel_memory_.emplace(gpu_);
    kernels_.emplace(*kernel_memory_,
                     static_cast<std::uint64_t>(
                         std::chrono::duration_cast<std::chrono::nanoseconds>(timeout_).count()));
  } catch (...) {
    (void)rwCommDestroy(comm_);
    throw;
  }
  thread_ = std::thread([this] { work(); });
}

// Every rank says what is wrong with its arguments, and all hear it.
void Engine::check_arguments(const Arguments& arguments) {
  struct Offer {
    std::int32_t with_gpu = 0;
    char fault[124] = {};
  };
  std::vector<Offer> offers(static_cast<std::size_t>(size_));
  Offer mine;
  mine.with_gpu = arguments.gpu >= 0 ? 1 : 0;
  for (const int peer : arguments.peers.value_or(std::vector<int>())) {
    if (peer >= 0 && peer < size_) continue;
    const std::string fault =
        "peers: " + std::to_string(peer) + " is no rank of " + std::to_string(size_);
    fault.copy(mine.fault, sizeof mine.fault - 1);
  }
  check(rwAllGather(&mine, offers.data(), sizeof mine, rwInt8, comm_, nullptr, nullptr));
  for (int rank = 0; rank < size_; ++rank) {
    const Offer& its = offers[static_cast<std::size_t>(rank)];
    if (its.fault[0] != '\0') {
      throw Failure(EINVAL, "rank " + std::to_string(rank) + ": " + its.fault);
    }
    require(its.with_gpu == offers[0].with_gpu, "gpu_id: some ranks name a GPU and others do not");
  }
}

// Rings in GPU memory take, and give, memory of either kind; those in the host's only its own.
void Engine::make_channels(const Arguments& arguments) {
  const RingLayout layout = RingLayout::for_ranks(size_);
  gpu_ = arguments.gpu;
  try {
    check(rwWindowCreateOn(comm_, std::max(gpu_, -1), layout.part_bytes(size_), kSlots, &ring_));
  } catch (const Failure& failure) {
    if (gpu_ < 0) throw;
    throw Failure(EINVAL, std::string("gpu_id (MP_HOST_ONLY is -1): ") + failure.what());
  }
  if (gpu_ >= 0) check(rwWindowCreateOn(comm_, gpu_, 0, 2 * kMostStreams, &words_));
  channels_.resize(static_cast<std::size_t>(size_));
  const std::optional<std::vector<int>>& peers = arguments.peers;
  for (int peer = 0; peer < size_; ++peer) {
    if (peers.has_value() && std::ranges::find(*peers, peer) == peers->end()) continue;
    channels_[static_cast<std::size_t>(peer)] =
        std::make_unique<PeerChannel>(rank_, peer, layout, ring_);
  }
}

bool Engine::on_gpu(const void* memory) const { return gpu_ >= 0 && is_on_gpu(memory); }

// Not a call of Ropewalk's, which would hold back what this rank still has under way.
void Engine::barrier(Lock& lock) {
  ++barriers_;
  for (int peer = 0; peer < size_; ++peer) {
    check(rwSignal(peer, kSlotBarrier, 1, ring_, nullptr, nullptr));
  }
  for (int peer = 0; peer < size_; ++peer) {
    wait_until(lock, [&] {
      require_whole();
      std::uint64_t come = 0;
      check(rwSignalCount(peer, kSlotBarrier, ring_, &come));
      return come >= barriers_;
    });
  }
}

void Engine::finalize() {
  Lock lock(mutex_);
  if (broken_.empty()) barrier(lock);
  kernels_->fail("mp_finalize was called");
  ends_ = true;
  lock.unlock();
  work_comes_.notify_one();
  thread_.join();
  require_whole();
  for (const auto& window : windows_) check(rwWindowFree(window->window));
  check(rwCommFinalize(comm_));
  finalized_ = true;
}

Engine::~Engine() {
  if (thread_.joinable()) {
    {
      const Lock lock(mutex_);
      kernels_->fail("the program ends");
      ends_ = true;
    }
    work_comes_.notify_one();
    thread_.join();
  }
  for (const auto& [request, owned] : requests_) {
    if (request->transfer != nullptr) (void)rwRequestFree(request->transfer);
  }
  // A program that ends without mp_finalize has failed: the others must not wait for it.
  if (comm_ != nullptr) (void)(finalized_ ? rwCommDestroy(comm_) : rwCommAbort(comm_));
}

// ---- requests -----------------------------------------------------------------------------

void Engine::require_whole() const {
  if (!broken_.empty()) throw Failure(MP_FAILURE, broken_);
}

void Engine::require_peer(int peer) const {
  if (peer >= 0 && peer < size_ && channels_[static_cast<std::size_t>(peer)] != nullptr) return;
  throw Failure(EINVAL, "peer: " + std::to_string(peer) + " is not among mp_init's peers");
}

mp_request& Engine::checked_locked(mp_request* request) const {
  require(request != nullptr, "req: NULL, or a request that was released");
  require(requests_.contains(request), "req: no request, or one that was released");
  return *request;
}

mp_request& Engine::checked(mp_request* request) {
  const Lock lock(mutex_);
  return checked_locked(request);
}

mp_request& Engine::checked_in(mp_request* request, State state) {
  const Lock lock(mutex_);
  mp_request& its = checked_locked(request);
  require(its.state == state,
          state == State::kPrepared ? "req: not prepared, or posted already" : "req: not so far");
  return its;
}

mp_request* Engine::prepare(mp_request request) {
  const Lock lock(mutex_);
  require_whole();
  require_peer(request.peer);
  if (request.window != nullptr) {
    require(usable_windows_.contains(request.window), "window: none, or destroyed");
    const std::size_t there = request.window->sizes[static_cast<std::size_t>(request.peer)];
    if (request.displacement > there || request.bytes > there - request.displacement) {
      throw Failure(EINVAL, "displ: " + std::to_string(request.displacement) + " and " +
                                std::to_string(request.bytes) + " bytes leave the " +
                                std::to_string(there) + " of rank " + std::to_string(request.peer));
    }
    if (request.buffer_on_gpu && !request.window->on_gpu) {
      throw Failure(ENOTSUP, "a put or get between GPU memory and a window in host memory");
    }
  }
  auto owned = std::make_unique<mp_request>(std::move(request));
  mp_request* const made = owned.get();
  requests_.emplace(made, std::move(owned));
  return made;
}

void Engine::discard(mp_request* request) {
  const Lock lock(mutex_);
  requests_.erase(request);
}

void Engine::post(mp_request* request) {
  ++waiting_;
  const Lock lock(mutex_);
  --waiting_;
  try {
    start(*request);
    poll_or_fail();
  } catch (...) {
    requests_.erase(request);
    throw;
  }
  wake();
}

void Engine::start(mp_request& request) {
  require_whole();
  request.state = State::kStarted;
  PeerChannel& channel = *channels_[static_cast<std::size_t>(request.peer)];
  switch (request.kind) {
    case Kind::kSend: channel.send(request); break;
    case Kind::kReceive: channel.receive(request); break;
    case Kind::kPut:
    case Kind::kGet: start_transfer(request); break;
  }
}

void Engine::start_transfer(mp_request& request) {
  const Block block = request.blocks.empty() ? Block{} : request.blocks.front();
  const rwMessageWindow_t window = request.window->window;
  if (request.kind == Kind::kGet) {
    check(rwGet(block.data, block.bytes, request.peer, request.displacement, window, nullptr,
                &request.transfer));
  } else {
    check(rwPut(block.data, block.bytes, request.peer, request.displacement, window, nullptr,
                &request.transfer));
    channels_[static_cast<std::size_t>(request.peer)]->put_before(window);
  }
  transfers_.push_back(&request);
}

void Engine::release(mp_request* request) {
  kernels_->forget(*request);
  if (request->transfer != nullptr) (void)rwRequestFree(request->transfer);
  requests_.erase(request);
}

// ---- streams ------------------------------------------------------------------------------

StreamQueue& Engine::queue_of(void* stream) {
  if (const auto found = streams_.find(stream); found != streams_.end()) return found->second;
  if (gpu_ < 0) {
    require(stream == nullptr, "stream: only NULL, since mp_init was given no GPU");
    return streams_.try_emplace(stream).first->second;
  }
  if (streams_.size() == kMostStreams) {
    throw Failure(ENOMEM, "stream: more than " + std::to_string(kMostStreams) + " were used");
  }
  const int slot = 2 * static_cast<int>(streams_.size());
  // The address that is 0 to CUDA has a number of its own here.
  auto* const named = stream == nullptr ? RW_STREAM_LEGACY : static_cast<rwStream_t>(stream);
  return streams_.try_emplace(stream, named, words_, rank_, slot).first->second;
}

void Engine::enqueue(void* stream, std::span<const StreamOperation> operations, bool blocks) {
  ++waiting_;
  Lock lock(mutex_);
  --waiting_;
  require_whole();
  StreamQueue& queue = queue_of(stream);
  // Ropewalk's calls on streams wait where too many are under way, and these end by polling here.
  wait_until(lock, [&] { return held_by_streams() < kMostHeld; });
  require_whole();
  queue.append(operations, blocks);
  poll_or_fail();
  wake();
}

std::size_t Engine::held_by_streams() const {
  std::size_t held = 0;
  for (const auto& [stream, queue] : streams_) held += queue.held();
  return held;
}

bool Engine::poll_streams() {
  bool moved = false;
  for (auto& [stream, queue] : streams_) {
    if (queue.idle()) continue;
    moved |= queue.poll([this](mp_request& request) { start(request); });
  }
  return moved;
}

// ---- kernels ------------------------------------------------------------------------------

mp_kernel_send_t Engine::start_by_kernel(mp_request* request) {
  const Lock lock(mutex_);
  require_whole();
  mp_request& its = checked_locked(request);
  require(its.state == State::kPrepared, "req: not prepared, or posted already");
  const mp_kernel_send_t send = kernels_->start_by_kernel(its);
  wake();
  return send;
}

void Engine::wait_by_kernel(std::span<mp_request* const> requests, mp_kernel_wait_t* waits) {
  const Lock lock(mutex_);
  require_whole();
  for (std::size_t k = 0; k < requests.size(); ++k) {
    require_waitable(checked_locked(requests[k]));
    const auto before = requests.first(k);
    require(std::ranges::find(before, requests[k]) == before.end(), "req: the same one twice");
  }
  for (mp_request* const request : requests) kernels_->provide(*request);
  for (mp_request* const request : requests) *waits++ = kernels_->wait_by_kernel(*request);
  wake();
}

mp_kernel_word_t Engine::word_for_kernel(std::uint32_t* word) {
  const Lock lock(mutex_);
  require_whole();
  const mp_kernel_control_t* const control = kernels_->control();
  wake();
  return {kernel_memory_->reach(word), control};
}

void* Engine::allocate_for_kernels(std::size_t bytes) {
  const Lock lock(mutex_);
  return kernel_memory_->allocate(bytes);
}

bool Engine::poll_kernels() {
  return kernels_->poll([this](mp_request& request) { start(request); });
}

// ---- progress -----------------------------------------------------------------------------

bool Engine::poll_transfers() {
  bool moved = false;
  for (std::size_t k = 0; k < transfers_.size();) {
    mp_request* const request = transfers_[k];
    const rwResult_t result = rwRequestWait(request->transfer, 0);
    if (result == rwInProgress) {
      ++k;
      continue;
    }
    request->end(result == rwSuccess ? std::string() : rwRequestError(request->transfer));
    transfers_.erase(transfers_.begin() + static_cast<std::ptrdiff_t>(k));
    moved = true;
    if (request->releases_itself && request->waiting_streams == 0) release(request);
    if (result != rwSuccess) check(result);
  }
  return moved;
}

bool Engine::poll() {
  bool moved = poll_streams();
  moved |= poll_kernels();
  for (const auto& channel : channels_) {
    if (channel != nullptr && !channel->idle()) moved |= channel->poll();
  }
  if (!transfers_.empty()) moved |= poll_transfers();
  // At once, rather than when this is called again.
  if (moved) (void)poll_kernels();
  return moved;
}

void Engine::poll_or_fail() {
  if (!broken_.empty()) return;
  try {
    (void)poll();
  } catch (const std::exception& failure) {
    fail(failure.what());
  }
}

void Engine::fail(const std::string& text) {
  if (!broken_.empty()) return;
  broken_ = text;
  for (const auto& channel : channels_) {
    if (channel != nullptr) channel->fail(text);
  }
  for (auto& [stream, queue] : streams_) queue.fail(text);
  kernels_->fail(text);
  // Ends the transfers, whose memory is not touched any more then, and tells the other ranks. No
  // window may be used from now on.
  (void)rwCommAbort(std::exchange(comm_, nullptr));
  for (mp_request* const request : transfers_) {
    (void)rwRequestWait(request->transfer, -1);
    request->end(text);
  }
  transfers_.clear();
}

bool Engine::idle() const {
  return transfers_.empty() && kernels_->idle() &&
         std::ranges::all_of(channels_,
                             [](const auto& each) { return each == nullptr || each->idle(); }) &&
         std::ranges::all_of(streams_, [](const auto& each) { return each.second.idle(); });
}

void Engine::look(Clock::duration waited) {
  rwResult_t error = rwSuccess;
  check(rwCommGetAsyncError(comm_, &error));
  if (error != rwSuccess) {
    const char* const text = rwGetLastError(comm_);
    throw Failure(MP_FAILURE, std::string(rwGetErrorString(error)) + ": " + text);
  }
  if (timeout_.count() > 0 && waited > timeout_) {
    throw Failure(MP_FAILURE, "rank " + std::to_string(rank_) + " has waited for " +
                                  std::to_string(std::chrono::duration<double>(waited).count()) +
                                  " s while nothing moved (setting TIMEOUT)");
  }
}

template <typename Done>
void Engine::wait_until(Lock& lock, Done&& done) {
  struct Waiting {
    explicit Waiting(std::atomic<int>& counter) : count(counter) { ++count; }
    ~Waiting() { --count; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    std::atomic<int>& count;
  };
  const Waiting waiting(waiting_);
  Clock::time_point last_moved = Clock::now();
  Clock::time_point next_look = last_moved + kLook;
  while (!done()) {
    require_whole();
    bool moved = false;
    try {
      moved = poll();
      const Clock::time_point now = Clock::now();
      if (moved) last_moved = now;
      if (now > next_look) {
        look(now - last_moved);
        next_look = now + kLook;
      }
    } catch (const std::exception& failure) {
      fail(failure.what());
      continue;
    }
    if (moved) continue;
    lock.unlock();
    pause_or_sleep(Clock::now() - last_moved);
    lock.lock();
  }
}

void Engine::wake() { work_comes_.notify_one(); }

void Engine::work() {
  Lock lock(mutex_);
  Clock::time_point last_moved = Clock::now();
  Clock::time_point next_look = last_moved + kLook;
  while (!ends_) {
    if (!broken_.empty() || (idle() && !kernels_->may_wait())) {
      work_comes_.wait(lock);
      last_moved = Clock::now();
      continue;
    }
    bool moved = false;
    try {
      // A call that waits polls by itself.
      if (waiting_ == 0) moved = poll();
      // Kernels wait, and hear of a lost peer by this alone.
      if (const Clock::time_point now = Clock::now(); kernels_->may_wait() && now > next_look) {
        look(Clock::duration::zero());
        next_look = now + kLook;
      }
    } catch (const std::exception& failure) {
      fail(failure.what());
      continue;
    }
    if (idle()) {
      (void)work_comes_.wait_for(lock, kLook);
      last_moved = Clock::now();
      continue;
    }
    const Clock::time_point now = Clock::now();
    if (moved) last_moved = now;
    lock.unlock();
    if (now - last_moved < kBusy && waiting_ == 0) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
    lock.lock();
  }
}

// ---- waiting ------------------------------------------------------------------------------

void Engine::wait(mp_request* request) {
  ++waiting_;
  Lock lock(mutex_);
  --waiting_;
  mp_request& its = checked_locked(request);
  try {
    wait_until(lock, [&] { return its.ended() && its.waiting_streams == 0; });
  } catch (const Failure&) {
    if (its.ended()) release(request);
    throw;
  }
  const std::string error = its.error;
  release(request);
  if (!error.empty()) throw Failure(MP_FAILURE, error);
}

std::uint32_t Engine::count_complete(std::span<mp_request* const> requests) {
  ++waiting_;
  const Lock lock(mutex_);
  --waiting_;
  poll_or_fail();
  std::uint32_t complete = 0;
  for (mp_request* const request : requests) {
    const mp_request& its = checked_locked(request);
    if (its.ended() && its.waiting_streams == 0) ++complete;
  }
  return complete;
}

void Engine::wait_word(const std::uint32_t* word, std::uint32_t value, int condition) {
  ++waiting_;
  Lock lock(mutex_);
  --waiting_;
  wait_until(lock, [&] {
    if (word_is(word, value, condition)) return true;
    require_whole();
    // Moves what Ropewalk's links bring: puts of others.
    std::uint64_t ignored = 0;
    check(rwSignalCount(rank_, kSlotBarrier, ring_, &ignored));
    return word_is(word, value, condition);
  });
}

// ---- windows ------------------------------------------------------------------------------

mp_window* Engine::create_window(void* memory, std::size_t bytes) {
  Lock lock(mutex_);
  require_whole();
  // When all have come, no rank waits outside for what this one has under way.
  barrier(lock);
  auto made = std::make_unique<mp_window>();
  made->sizes.resize(static_cast<std::size_t>(size_));
  struct Part {
    std::uint64_t bytes = 0;
    std::uint64_t on_gpu = 0;
  };
  const Part mine{bytes, bytes > 0 && on_gpu(memory) ? 1U : 0U};
  std::vector<Part> parts(static_cast<std::size_t>(size_));
  check(rwAllGather(&mine, parts.data(), sizeof mine, rwInt8, comm_, nullptr, nullptr));
  bool on_host = false;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    made->sizes[rank] = parts[rank].bytes;
    if (parts[rank].bytes == 0) continue;
    (parts[rank].on_gpu != 0 ? made->on_gpu : on_host) = true;
  }
  require(!on_host || !made->on_gpu, "addr: some ranks give GPU memory, and others the host's");
  if (bytes > 0) {
    check(rwWindowRegister(comm_, memory, bytes, 1, &made->window));
  } else {
    check(rwWindowCreateOn(comm_, made->on_gpu ? gpu_ : -1, 0, 1, &made->window));
  }
  windows_.push_back(std::move(made));
  usable_windows_.insert(windows_.back().get());
  return windows_.back().get();
}

mp_window& Engine::checked(mp_window* window) {
  const Lock lock(mutex_);
  require(usable_windows_.contains(window), "window: none, or destroyed");
  return *window;
}

void Engine::destroy_window(mp_window* window) {
  const Lock lock(mutex_);
  require(usable_windows_.contains(window), "window: none, or destroyed");
  const bool used = std::ranges::any_of(requests_, [&](const auto& each) {
    return each.second->window == window && !each.second->ended();
  });
  require(!used, "window: requests on it have not ended");
  // All ranks end a Ropewalk window together, which they do in mp_finalize.
  usable_windows_.erase(window);
}

}  // namespace ropewalk::mp
