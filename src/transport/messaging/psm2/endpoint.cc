#include "transport/messaging/psm2/endpoint.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/random.h"
#include "core/socket.h"
#include "transport/messaging/abandoned_files.h"
#include "transport/messaging/psm2/connection.h"
#include "transport/messaging/psm2/setup_threads.h"
#include "transport/messaging/psm2/shared_files.h"

namespace ropewalk::transport::psm2 {
namespace {

// Share of the 1024 entries of a receive queue; the others are for libpsm2's own packets.
constexpr unsigned kQueueUnits = 960;
// The windows of the first connections, and of those that come when the queue gets short.
constexpr unsigned kWindow = 64;
constexpr unsigned kSmallWindow = 16;
constexpr unsigned kSmallestWindow = 4;
// There are fewer connections than numbers: each has a window.
constexpr std::uint32_t kLastNumber = 0x7fff;
// libpsm2 raises anything shorter to this.
constexpr std::int64_t kConnectNs = 2'000'000'000;
// What an endpoint has in /dev/shm, and some. Where that is full, libpsm2's first touch of its
// memory ends the process.
constexpr std::uint64_t kSharedMemoryBytes = 5 << 20;

// All processes of a job need the same, and the numbers in their tags distinguish jobs on adapters.
// Over shared memory alone its first 16 bits and the process's number are an endpoint's id.
abi::JobKey job_key(bool shared_memory) {
  abi::JobKey key{'r', 'o', 'p', 'e', 'w', 'a', 'l', 'k'};
  if (shared_memory) {
    static std::atomic<std::uint16_t> next = [] {
      std::uint16_t first = 0;
      fill_random(std::as_writable_bytes(std::span(&first, 1)));
      return first;
    }();
    const std::uint16_t own = next++;
    std::memcpy(key.data(), &own, sizeof own);
  }
  return key;
}

// The endpoints of this process and, of no use here, of those that it was forked from. Immortal:
// libpsm2 and the helper threads use them until the process ends.
struct Pool {
  std::mutex mutex;
  std::vector<Endpoint*> endpoints;
};
Pool& pool() {
  static Pool& all = *new Pool;
  return all;
}

}  // namespace

Endpoint::Endpoint(std::shared_ptr<const Library> library, const Device& device, bool shared)
    : library_(std::move(library)), device_(device), shared_(shared), free_units_(kQueueUnits) {
  open();
  log::info(log::kNet, "psm2: an endpoint on {}, id {:x}", device_.name, id_);
}

void Endpoint::open() {
  if (const int removed = remove_abandoned_files(); removed > 0) {
    log::info(log::kNet, "psm2: removed {} files of processes that were killed from /dev/shm",
              removed);
  }
  struct statvfs space {};
  if (statvfs("/dev/shm", &space) == 0 &&
      std::uint64_t{space.f_bavail} * space.f_frsize < kSharedMemoryBytes) {
    throw Error(Errc::kSystem, "psm2: /dev/shm has {} KiB left; an endpoint needs {} KiB",
                std::uint64_t{space.f_bavail} * space.f_frsize >> 10, kSharedMemoryBytes >> 10);
  }
  abi::OpenOptions options{};
  library_->open_defaults(&options);
  options.affinity = 0;  // else it pins this thread to cores near the adapter
  options.unit = device_.unit;
  options.port = device_.port;
  const abi::JobKey key = job_key(library_->shared_memory());
  abi::Error error = library_->endpoint_open(key.data(), &options, &endpoint_, &id_);
  if (error != abi::kOk) {
    throw Error(Errc::kSystem, "psm2_ep_open on {}: {}", device_.name, library_->words(error));
  }
  file_ = messaging::claim_file(shared_file(id_));
  error = library_->queue_init(endpoint_, ~std::uint64_t{0}, nullptr, 0, &queue_);
  if (error != abi::kOk) {
    throw Error(Errc::kSystem, "psm2_mq_init on {}: {}", device_.name, library_->words(error));
  }
}

bool Endpoint::has_room() const noexcept {
  return !retired_ && !runs_out_ && !belonging_.elsewhere() && free_units_ >= kSmallestWindow;
}

void Endpoint::add(Member& member) { members_.push_back(&member); }
void Endpoint::remove(Member& member) { std::erase(members_, &member); }

std::uint32_t Endpoint::take_number() {
  do {
    last_number_ = last_number_ % kLastNumber + 1;
  } while (!numbers_.insert(last_number_).second);
  return last_number_;
}

void Endpoint::drop_messages_to(std::uint32_t identity) {
  // What is under way when an end goes comes within the life of few others.
  constexpr std::size_t kMostRemembered = 32;
  ended_.push_back(identity);
  if (ended_.size() > kMostRemembered) ended_.pop_front();
  if (retired_) return;
  constexpr abi::Tag kOfOneEnd{{0, ~kProbe, 0}};
  constexpr abi::Tag kThis{{kWhole, kWhole, kWhole}};
  for (const std::uint32_t each : ended_) {
    abi::Status status{};
    while (has_come({{0, each, 0}}, kOfOneEnd, status) && status.sent_bytes <= kEagerBytes) {
      abi::QueueRequest* request = nullptr;
      // Longer than its receive, and so cut.
      if (start_receive(status.tag, kThis, 0, nullptr, 0, request) != abi::kOk) return;
      if (!ended(request, status) && !withdraw(request)) return;
    }
  }
}

unsigned Endpoint::take_window() {
  const unsigned left = free_units_;
  unsigned window = left > kQueueUnits / 2   ? kWindow
                    : left > kQueueUnits / 4 ? kSmallWindow
                                             : kSmallestWindow;
  window = std::min(window, left);
  free_units_ -= window;
  return window;
}

void Endpoint::give_window(unsigned units) { free_units_ += units; }

void Endpoint::reach(abi::EndpointId id) {
  Peer& known = peer(id);
  known.wanted = true;
  if (known.reach == Reach::kConnected || known.reach == Reach::kUnderWay) return;
  known.reach = Reach::kUnderWay;
  ++connecting_;
  connect_in_background(*this, id);
}

bool Endpoint::connect(abi::EndpointId id) {
  Peer& known = peer(id);
  const auto done = [&](std::string why_failed) {
    known.why_failed = std::move(why_failed);
    known.reach = known.why_failed.empty() ? Reach::kConnected : Reach::kFailed;
    --connecting_;
    return true;
  };
  if (retired_) return done("the endpoint is no longer used");
  if (!known.wanted) return done("the connection was given up");
  // libpsm2 does not survive to connect to memory that is not there.
  struct stat file {};
  if (const std::string path = shared_file(id);
      id != id_ && shares_memory(id) && stat(path.c_str(), &file) != 0) {
    return done(fmt::format("stat of the peer's {}: {}", path, system_words(errno)));
  }
  abi::Error each = abi::kOk;
  const abi::Error error =
      library_->endpoint_connect(endpoint_, 1, &id, nullptr, &each, &known.address, kConnectNs);
  collect_failed_copies();
  if (error == abi::kOk) return done({});
  constexpr abi::Error kTimedOut = 11;  // PSM2_TIMEOUT
  if (error == kTimedOut || each == kTimedOut) return false;
  return done(fmt::format("psm2_ep_connect: {}", library_->words(each != abi::kOk ? each : error)));
}

bool Endpoint::shares_memory(abi::EndpointId id) const {
  if (library_->shared_memory() || id == id_) return true;
  std::uint32_t shares = 0;
  return library_->shares_memory(endpoint_, id, &shares) == abi::kOk && shares != 0;
}

void Endpoint::collect_failed_copies() {
  if (!Library::copies_failed()) return;
  for (const Library::FailedCopy& each : Library::take_failed_copies()) {
    failed_copies_.push_back(each);
  }
}

int Endpoint::failed_copy(const void* data, std::size_t bytes) {
  if (failed_copies_.empty()) return 0;
  const auto* const begin = static_cast<const std::byte*>(data);
  const auto failed = std::find_if(
      failed_copies_.begin(), failed_copies_.end(),
      [&](const Library::FailedCopy& each) { return each.to >= begin && each.to < begin + bytes; });
  if (failed == failed_copies_.end()) return 0;
  const int error = failed->error;
  failed_copies_.erase(failed);
  return error;
}

bool Endpoint::poll() {
  if (retired_) return false;
  const abi::Error error = library_->poll(endpoint_);
  collect_failed_copies();
  return error == abi::kOk;
}

void Endpoint::look_at_sides() {
  // One that fails may end others, but removes none.
  for (std::size_t i = 0; i < members_.size(); ++i) members_[i]->on_wait();
}

void Endpoint::poll_all() RW_NO_THREAD_ANALYSIS {
  poll();
  look_at_sides();
  std::vector<Endpoint*> others;
  {
    Pool& all = pool();
    const std::lock_guard lock(all.mutex);
    others = all.endpoints;
  }
  for (Endpoint* const other : others) {
    if (other == this || other->belonging_.elsewhere() || other->users == 0) continue;
    if (!other->mutex.try_lock()) continue;
    other->poll();
    other->look_at_sides();
    other->mutex.unlock();
  }
}

abi::Error Endpoint::send(abi::Address* to, const abi::Tag& tag, const void* data,
                          std::size_t bytes) {
  return library_->send(queue_, to, 0, &tag, data, static_cast<std::uint32_t>(bytes));
}

abi::Error Endpoint::start_send(abi::Address* to, std::uint32_t flags, const abi::Tag& tag,
                                const void* data, std::size_t bytes, abi::QueueRequest*& request) {
  return library_->start_send(queue_, to, flags, &tag, data, static_cast<std::uint32_t>(bytes),
                              nullptr, &request);
}

abi::Error Endpoint::start_receive(const abi::Tag& tag, const abi::Tag& mask, std::uint32_t flags,
                                   void* data, std::size_t bytes, abi::QueueRequest*& request) {
  const abi::Error error =
      library_->start_receive(queue_, nullptr, &tag, &mask, flags, data,
                              static_cast<std::uint32_t>(bytes), nullptr, &request);
  collect_failed_copies();
  return error;
}

bool Endpoint::has_come(const abi::Tag& tag, const abi::Tag& mask, abi::Status& status) {
  return library_->probe(queue_, nullptr, &tag, &mask, &status) == abi::kOk;
}

bool Endpoint::ended(abi::QueueRequest*& request, abi::Status& status) {
  if (retired_) return false;
  return library_->test(&request, &status) != abi::kIncomplete;
}

bool Endpoint::withdraw(abi::QueueRequest*& request) {
  if (request == nullptr) return true;
  if (retired_ || library_->cancel(&request) != abi::kOk) return false;
  abi::Status status{};
  library_->test(&request, &status);
  request = nullptr;
  return true;
}

void Endpoint::retire(const std::string& reason) {
  if (retired_) return;
  retired_ = true;
  log::warn("psm2: an endpoint on {} is no longer used: {}", device_.name, reason);
  for (std::size_t i = 0; i < members_.size(); ++i) members_[i]->on_retired(reason);
}

Lease::Lease(const std::shared_ptr<const Library>& library, const Device& device, bool shared) {
  Pool& all = pool();
  const std::lock_guard lock(all.mutex);
  for (Endpoint* const each : all.endpoints) {
    const bool same = each->shared() == shared && each->device().name == device.name;
    if (same && each->has_room() && (shared || each->users == 0)) {
      endpoint_ = each;
      ++endpoint_->users;
      return;
    }
  }
  auto made = std::make_unique<Endpoint>(library, device, shared);
  all.endpoints.push_back(made.get());
  endpoint_ = made.release();
  ++endpoint_->users;
}

}  // namespace ropewalk::transport::psm2
