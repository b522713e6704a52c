#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "core/mutex.h"
#include "transport/messaging/tcp/connection.h"

namespace ropewalk::transport::tcp {
namespace {

using Clock = std::chrono::steady_clock;

// A peer that does not take our last bytes for this long has lost them.
constexpr auto kPatience = std::chrono::seconds(30);
// settle() waits at most this long for all of them.
constexpr auto kLastPatience = std::chrono::seconds(2);

// @return true when the socket can be closed without losing anything that could still be saved
bool through(int socket) {
  // What the peer wrote meanwhile must be taken: closing over unread bytes resets the connection.
  // (MSG_TRUNC with no buffer would take it without a copy; the thread sanitizer, which sees a
  // write of all those bytes, would report it.)
  std::array<std::byte, 4096> unread;
  ssize_t got = 0;
  do {
    got = recv(socket, unread.data(), unread.size(), MSG_DONTWAIT);
  } while (got > 0 || (got < 0 && errno == EINTR));
  // After the peer's end no packet can arrive that resets the connection, and the system delivers
  // the written data. After an error there is nothing left to save.
  if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return true;
  int unacknowledged = 0;
  if (ioctl(socket, SIOCOUTQ, &unacknowledged) != 0) return true;
  return unacknowledged == 0;
}

}  // namespace

struct Linger::State {
  struct Closing {
    FileDescriptor socket;
    Clock::time_point deadline;
  };
  Mutex mutex;
  std::vector<Closing> closing RW_GUARDED_BY(mutex);
  std::atomic<std::size_t> count = 0;
};

Linger::Linger() : state_(std::make_unique<State>()) {}

Linger::~Linger() { settle(); }

void Linger::settle() {
  const Clock::time_point deadline = Clock::now() + kLastPatience;
  for (poll(); state_->count > 0 && Clock::now() < deadline; poll()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Linger::adopt(FileDescriptor socket) {
  shutdown(socket.get(), SHUT_WR);
  if (!through(socket.get())) {
    const Lock lock(state_->mutex);
    state_->closing.push_back({std::move(socket), Clock::now() + kPatience});
    ++state_->count;
  }
  poll();
}

void Linger::poll() {
  if (state_->count.load(std::memory_order_relaxed) == 0) return;
  const Lock lock(state_->mutex);
  const Clock::time_point now = Clock::now();
  std::erase_if(state_->closing, [&](const State::Closing& entry) {
    return through(entry.socket.get()) || now > entry.deadline;
  });
  state_->count = state_->closing.size();
}

}  // namespace ropewalk::transport::tcp
