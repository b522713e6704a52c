#include "transport/window/cuda_ipc/openings.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "core/log.h"
#include "core/unix_socket.h"

namespace ropewalk::transport::window {
namespace {

// Opening takes milliseconds, unless it waits for a kernel: then a longer wait does not help.
constexpr std::chrono::seconds kOpeningPatience{2};
constexpr std::chrono::microseconds kPause{50};

}  // namespace

Openings::Openings(Worker& worker, Gpus& gpus, int socket)
    : worker_(worker),
      gpus_(gpus),
      same_process_(peer_of(socket).pid == getpid()),
      socket_(socket) {}

void Openings::close() {
  int socket = -1;
  {
    const Lock lock(mutex_);
    std::swap(socket, socket_);
  }
  worker_.unwatch(socket);
}

void Openings::expect(Gpu& gpu) {
  {
    const Lock lock(mutex_);
    if (socket_ < 0) return;
    if (expecting_.empty()) {
      worker_.watch(socket_, [self = weak_from_this()] {
        if (const auto openings = self.lock()) openings->read();
      });
    }
    if (expecting_.insert(gpu.ordinal()).second) send_answer(socket_, Answer::kTakesDeviceMemory);
    read_offers();
    for (const std::uint64_t key : offers_.keys()) open_expected(key);
  }
  const auto deadline = std::chrono::steady_clock::now() + kOpeningPatience;
  while (!all_finished()) {
    if (std::chrono::steady_clock::now() > deadline) {
      log::info(log::kNet, "{}", "cuda_ipc: opening the sender's GPU memory takes long");
      return;
    }
    std::this_thread::sleep_for(kPause);
  }
}

bool Openings::all_finished() const {
  const Lock lock(mutex_);
  return std::all_of(openings_.begin(), openings_.end(), [](const auto& entry) {
    return entry.second->finished.load(std::memory_order_acquire);
  });
}

void Openings::read() {
  const Lock lock(mutex_);
  read_offers();
}

void Openings::read_offers() {
  if (socket_ < 0) return;
  const OfferReader::Came came = offers_.read(socket_);
  for (const std::uint64_t key : came.withdrawn) {
    std::erase_if(openings_, [&](const auto& entry) { return entry.first.first == key; });
  }
  for (const std::uint64_t key : came.offered) open_expected(key);
}

void Openings::open_expected(std::uint64_t key) {
  if (expecting_.empty()) return;
  for (const int ordinal : expecting_) (void)start({key, ordinal});
  // After what start() has the worker do.
  worker_.run([self = weak_from_this(), key] {
    if (const auto openings = self.lock()) openings->answer(key);
  });
}

void Openings::answer(std::uint64_t key) {
  const Lock lock(mutex_);
  if (socket_ >= 0) send_answer(socket_, Answer::kOpened, key);
}

// @return null when it was not offered
std::shared_ptr<Opening> Openings::start(Which which) {
  const auto found = openings_.find(which);
  if (found != openings_.end()) return found->second;
  std::shared_ptr<const OfferedMemory> offer = offers_.find(which.first);
  if (!offer) return nullptr;
  std::shared_ptr<Opening> opening =
      start_opening(worker_, gpus_, gpus_.at(which.second), std::move(offer), same_process_);
  openings_[which] = opening;
  return opening;
}

std::optional<std::string> Openings::open(std::uint64_t key, int ordinal) {
  const Lock lock(mutex_);
  read_offers();
  const std::shared_ptr<Opening> opening = start({key, ordinal});
  // The offer was sent before this end was asked to open it.
  if (!opening) return "the offer of memory did not arrive";
  if (!opening->finished.load(std::memory_order_acquire)) return std::nullopt;
  return opening->why_not;
}

std::shared_ptr<const OpenedMemory> Openings::find(std::uint64_t key, int ordinal) const {
  const Lock lock(mutex_);
  const auto found = openings_.find({key, ordinal});
  if (found == openings_.end() || !found->second->finished.load(std::memory_order_acquire)) {
    return nullptr;
  }
  return found->second->memory;
}

}  // namespace ropewalk::transport::window
