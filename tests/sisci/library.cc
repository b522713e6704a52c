#include "library.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <utility>

namespace software_sisci {
namespace {

// The engine leaves a posted transfer to whoever polls for it, for one of its turns at least; a
// turn is short while somebody waits to be called. And how long it goes on looking for new ones
// before it sleeps.
constexpr auto kEngineTurn = std::chrono::milliseconds(2);
constexpr auto kEngineShortTurn = std::chrono::microseconds(200);
constexpr auto kEngineAwake = std::chrono::milliseconds(20);
constexpr std::size_t kEngineBytes = 1 << 20;

constexpr int kEventMilliseconds = 10;
// While a program stores into memory that the library polls.
constexpr int kStoreMilliseconds = 1;

std::mutex start_lock;
std::atomic<Library*> current{nullptr};
std::atomic<std::uint64_t> libraries{0};

// The child has neither the threads nor the entry of its parent; the parent's objects stay as they
// are, unused.
void forget_in_child() { current = nullptr; }

// A process that ends without SCITerminate.
__attribute__((destructor)) void leave_at_exit() {
  if (Library* const mine = current; mine != nullptr) mine->leave();
}

// Distinguishes versions of a file: two files made within some milliseconds may have the same time,
// but the second one has another inode.
FileVersion version_of(const std::string& path) {
  struct stat status {};
  if (path.empty() || stat(path.c_str(), &status) != 0) return {};
  return {status.st_mtim.tv_sec * 1'000'000'000LL + status.st_mtim.tv_nsec, status.st_ino};
}

std::string text_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

}  // namespace

Library* Library::get() noexcept { return current; }

void Library::start() {
  const std::lock_guard lock(start_lock);
  if (current != nullptr) return;
  static const int registered = pthread_atfork(nullptr, nullptr, forget_in_child);
  (void)registered;
  try {
    current = new Library();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "software SISCI: %s\n", error.what());
    throw Failure{SCI_ERR_SYSTEM};
  }
}

void Library::stop() {
  const std::lock_guard lock(start_lock);
  delete current.exchange(nullptr);
}

Library::Library() : id_(++libraries), settings_path_(text_of("SOFTWARE_SISCI_SETTINGS")) {
  const std::string host = text_of("SOFTWARE_SISCI_HOST");
  host_ = static_cast<unsigned>(std::strtoul(host.c_str(), nullptr, 10));
  auto settings = std::make_shared<Settings>();
  settings_version_ = version_of(settings_path_);
  std::string why;
  if (!settings_path_.empty() && !read_settings(settings_path_, host_, *settings, why)) {
    throw std::runtime_error(why);
  }
  if (settings->adapters > kMaxAdapters || host_ >= settings->hosts) {
    throw std::runtime_error("host " + std::to_string(host_) + " or its adapters are not possible");
  }
  settings_ = std::move(settings);
}

Library::~Library() { end(); }

void Library::open(sci_desc& descriptor) {
  const std::lock_guard lock(life_lock_);
  if (!fabric_) begin();
  descriptor.library = id_;
  ++descriptors_;
}

void Library::close(const sci_desc& descriptor) {
  const std::lock_guard lock(life_lock_);
  // One that an earlier SCITerminate survived is counted nowhere. A callback cannot end the thread
  // that it runs in; the next one that closes does.
  if (descriptor.library != id_ || --descriptors_ > 0) return;
  if (std::this_thread::get_id() != events_.get_id()) end();
}

void Library::begin() {
  try {
    fabric_ = std::make_unique<Fabric>(
        settings_path_.empty()
            ? "/dev/shm/software-sisci-" + std::to_string(kLayout) + "-" + std::to_string(getuid())
            : settings_path_ + ".state",
        host_);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "software SISCI: %s\n", error.what());
    throw Failure{SCI_ERR_SYSTEM};
  }
  stopping_ = false;
  watching_ = true;
  engine_ = std::thread([this] { run_engine(); });
  events_ = std::thread([this] { run_events(); });
}

void Library::end() {
  if (!fabric_) return;
  stopping_ = true;
  {
    const std::lock_guard lock(posted_lock_);
    posted_changed_.notify_all();
  }
  fabric_->announce();
  engine_.join();
  events_.join();
  watching_ = false;
  gpu_there_ = nullptr;
  gpu_.reset();
  fabric_.reset();
}

void Library::leave() noexcept {
  const std::unique_lock lock(life_lock_, std::try_to_lock);
  if (lock && fabric_) fabric_->leave();
}

std::shared_ptr<const Settings> Library::settings() const {
  if (!watching_) read_settings_if_changed();
  const std::lock_guard lock(settings_lock_);
  return settings_;
}

void Library::read_settings_if_changed() const {
  const std::lock_guard lock(settings_lock_);
  const FileVersion version = version_of(settings_path_);
  if (version == FileVersion{} || version == settings_version_) return;
  settings_version_ = version;
  auto settings = std::make_shared<Settings>();
  std::string why;
  if (!read_settings(settings_path_, host_, *settings, why)) {
    std::fprintf(stderr, "software SISCI: %s\n", why.c_str());
    return;
  }
  settings_ = std::move(settings);
}

std::optional<unsigned> Library::host_of(unsigned adapter, unsigned node) const {
  const auto now = settings();
  if (node == SCI_LOCAL_HOST) return host_;
  for (unsigned host = 0; host < now->hosts; ++host) {
    if (now->node_id(host, adapter) == node) return host;
  }
  return std::nullopt;
}

void Library::check_adapter(unsigned adapter) const {
  require(adapter < 16, SCI_ERR_ILLEGAL_ADAPTERNO);
  require(adapter < settings()->adapters, SCI_ERR_NO_SUCH_ADAPTERNO);
}

unsigned Library::reach(unsigned adapter, unsigned node) const {
  check_adapter(adapter);
  const std::optional<unsigned> host = host_of(adapter, node);
  require(host.has_value(), SCI_ERR_NO_SUCH_NODEID);
  require(settings()->link_up(host_, adapter), SCI_ERR_NO_LINK_ACCESS);
  require(settings()->link_up(*host, adapter), SCI_ERR_NO_REMOTE_LINK_ACCESS);
  return *host;
}

Clock::time_point Library::end_of_transfer(unsigned adapter, std::size_t bytes) {
  const auto now_set = settings();
  if (now_set->megabytes_per_second <= 0 && now_set->latency_us <= 0) return {};
  const std::lock_guard lock(link_lock_);
  Clock::time_point& free = link_free_[adapter];
  free = std::max(free, Clock::now());
  if (now_set->megabytes_per_second > 0) {
    free += std::chrono::nanoseconds(static_cast<std::int64_t>(static_cast<double>(bytes) * 1000.0 /
                                                               now_set->megabytes_per_second));
  }
  return free + std::chrono::nanoseconds(static_cast<std::int64_t>(now_set->latency_us * 1000.0));
}

GpuMemory& Library::gpu_memory() {
  const std::lock_guard lock(gpu_lock_);
  if (!gpu_) {
    try {
      gpu_ = std::make_unique<GpuMemory>(settings()->cuda_library, *fabric_);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "software SISCI: %s\n", error.what());
      throw Failure{SCI_ERR_HW_NOSPC};
    }
    gpu_there_ = gpu_.get();
  }
  return *gpu_;
}

// ---- the engine ----------------------------------------------------------------------------

void Library::posted(sci_dma_queue& queue) {
  const std::lock_guard lock(posted_lock_);
  queue.seen_by_engine = false;
  posted_.push_back(&queue);
  if (queue.callback != nullptr) engine_wanted_ = true;
  // To wake a thread costs more than most transfers.
  if (engine_sleeps_ || engine_wanted_) posted_changed_.notify_one();
}

void Library::withdraw(sci_dma_queue& queue) {
  std::unique_lock lock(posted_lock_);
  std::erase(posted_, &queue);
}

void Library::run_engine() {
  std::unique_lock lock(posted_lock_);
  Clock::time_point last_work = Clock::now();
  while (!stopping_) {
    if (posted_.empty() && Clock::now() - last_work > kEngineAwake) {
      engine_sleeps_ = true;
      posted_changed_.wait(lock, [this] { return stopping_ || !posted_.empty(); });
      engine_sleeps_ = false;
    }
    if (!posted_.empty()) last_work = Clock::now();
    const bool awaited = std::any_of(posted_.begin(), posted_.end(),
                                     [](const auto* queue) { return queue->callback != nullptr; });
    const Clock::duration turn = awaited ? Clock::duration(kEngineShortTurn) : kEngineTurn;
    posted_changed_.wait_for(lock, turn, [this] { return stopping_ || engine_wanted_; });
    engine_wanted_ = false;
    while (carry_on(lock)) {
    }
  }
}

// Copies of each transfer that was left to others for a turn, or has nobody who polls.
// @return whether there is more to copy
bool Library::carry_on(std::unique_lock<std::mutex>& lock) {
  const std::vector<sci_dma_queue*> now = posted_;
  bool more = false;
  for (sci_dma_queue* queue : now) {
    if (std::find(posted_.begin(), posted_.end(), queue) == posted_.end()) continue;
    if (queue->callback == nullptr && !std::exchange(queue->seen_by_engine, true)) continue;
    // A queue that is posted is not removed, and one that is being worked on stays posted.
    std::unique_lock work(queue->lock, std::try_to_lock);
    if (!work) continue;
    lock.unlock();
    more = queue->progress(*this, kEngineBytes) || more;
    work.unlock();
    lock.lock();
  }
  return more && !stopping_;
}

// ---- events --------------------------------------------------------------------------------

void Library::watch(Watched& object) {
  const std::lock_guard lock(watched_lock_);
  watched_.insert(&object);
}

void Library::forget(Watched& object) {
  std::unique_lock lock(watched_lock_);
  watched_.erase(&object);
  if (std::this_thread::get_id() == events_.get_id()) return;
  unpinned_.wait(lock, [&] { return pinned_ != &object; });
}

void Library::map_made(sci_map& map) {
  const std::lock_guard lock(delayed_lock_);
  delayed_.insert(&map);
}

void Library::map_gone(sci_map& map) {
  const std::lock_guard lock(delayed_lock_);
  delayed_.erase(&map);
}

void Library::run_events() {
  Clock::time_point last_survey{};
  int pause = kEventMilliseconds;
  while (!stopping_) {
    const std::uint32_t seen = fabric_->state().change;
    if (Clock::now() - last_survey > std::chrono::milliseconds(pause)) {
      last_survey = Clock::now();
      read_settings_if_changed();
      bool found = false;
      {
        const Fabric::Lock lock(*fabric_);
        found = fabric_->reclaim();
      }
      if (found) fabric_->announce();
      bool stored = false;
      {
        const std::lock_guard lock(delayed_lock_);
        for (sci_map* map : delayed_) stored = flush_map(*this, *map, false) || stored;
      }
      pause = stored ? kStoreMilliseconds : kEventMilliseconds;
    }
    if (GpuMemory* const gpu = gpu_there_; gpu != nullptr) gpu->survey();
    std::vector<Watched*> objects;
    {
      const std::lock_guard lock(watched_lock_);
      objects.assign(watched_.begin(), watched_.end());
    }
    bool again = false;
    for (Watched* object : objects) {
      {
        const std::lock_guard lock(watched_lock_);
        if (!watched_.contains(object)) continue;
        pinned_ = object;
      }
      const Looked looked = object->look(*this);
      again = again || looked == Looked::kCalled;
      const std::lock_guard lock(watched_lock_);
      if (looked == Looked::kCancelled) watched_.erase(object);
      pinned_ = nullptr;
      unpinned_.notify_all();
    }
    if (!again) fabric_->wait_for_change(seen, pause);
  }
}

Library& library() {
  Library* mine = Library::get();
  require(mine != nullptr, SCI_ERR_NOT_INITIALIZED);
  return *mine;
}

}  // namespace software_sisci

void software_sisci_read_settings() {
  if (const software_sisci::Library* const mine = software_sisci::Library::get()) {
    mine->read_settings_if_changed();
  }
}
