#include "bootstrap/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <unordered_set>

#include "core/error.h"
#include "core/mutex.h"

namespace ropewalk::bootstrap {
namespace {

// Fork handlers are process-wide, and so must be the list that they work on. Never destroyed:
// sockets may be closed while static objects are being destroyed.
struct OpenSockets {
  Mutex mutex;
  std::unordered_set<int> fds RW_GUARDED_BY(mutex);
  std::array<void (*)(), 8> child_handlers RW_GUARDED_BY(mutex){};
};

OpenSockets& open_sockets() {
  static OpenSockets* sockets = [] {
    auto* made = new OpenSockets;
    // Locked in one function and unlocked in another, which the analysis does not follow.
    pthread_atfork([]() RW_NO_THREAD_ANALYSIS { open_sockets().mutex.lock(); },
                   []() RW_NO_THREAD_ANALYSIS { open_sockets().mutex.unlock(); },
                   []() RW_NO_THREAD_ANALYSIS {
                     OpenSockets& all = open_sockets();
                     for (const int fd : all.fds) ::close(fd);
                     all.fds.clear();
                     all.mutex.unlock();
                     for (auto* handler : all.child_handlers) {
                       if (handler != nullptr) handler();
                     }
                   });
    return made;
  }();
  return *sockets;
}

void no_delay(int fd) {
  const int on = 1;
  // Fails on sockets that are not TCP, which have no delay either.
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

Socket::Socket(int fd) : fd_(fd) {
  if (fd_ < 0) return;
  OpenSockets& all = open_sockets();
  const Lock lock(all.mutex);
  all.fds.insert(fd_);
}

Socket::Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

Socket::~Socket() { close(); }

void Socket::close() noexcept {
  if (fd_ < 0) return;
  OpenSockets& all = open_sockets();
  const Lock lock(all.mutex);
  // Not in the list: this is a forked child, and the number may be another file's by now.
  if (all.fds.erase(fd_) != 0) ::close(fd_);
  fd_ = -1;
}

void call_in_forked_child(void (*handler)()) {
  OpenSockets& all = open_sockets();
  const Lock lock(all.mutex);
  for (auto*& place : all.child_handlers) {
    if (place == handler) return;
    if (place == nullptr) {
      place = handler;
      return;
    }
  }
  RW_ASSERT(false);
}

std::string system_words(int error) { return std::generic_category().message(error); }

bool raise_descriptor_limit() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return false;
  limit.rlim_cur = limit.rlim_max;
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

Socket new_socket(int family) {
  for (;;) {
    const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) return Socket(fd);
    if (errno == EMFILE && raise_descriptor_limit()) continue;
    const int error = errno;
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    if (error == EMFILE) {
      throw Error(Errc::kSystem, "socket: {} (the limit is {}, see ulimit -n)", system_words(error),
                  limit.rlim_cur);
    }
    throw system_error(error, "socket");
  }
}

Socket listen_on(const SocketAddress& address, SocketAddress* bound) {
  Socket socket = new_socket(address.storage.ss_family);
  const int on = 1;
  // A fixed port (rendezvous) may have connections of an earlier job in TIME_WAIT.
  (void)setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.get(), address.get(), address.length()) != 0) {
    throw system_error(errno, fmt::format("bind to {}", address.text()));
  }
  if (::listen(socket.get(), 4096) != 0) {
    throw system_error(errno, fmt::format("listen on {}", address.text()));
  }
  if (bound != nullptr) *bound = local_address(socket);
  return socket;
}

Socket start_connect(const SocketAddress& peer) {
  Socket socket = new_socket(peer.storage.ss_family);
  no_delay(socket.get());
  if (::connect(socket.get(), peer.get(), peer.length()) != 0 && errno != EINPROGRESS &&
      errno != EINTR) {
    throw system_error(errno, fmt::format("connect to {}", peer.text()));
  }
  return socket;
}

int connect_error(const Socket& socket) {
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

Socket accept_from(const Socket& listener, int* error) {
  for (;;) {
    const int fd = ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      no_delay(fd);
      *error = 0;
      return Socket(fd);
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EMFILE && raise_descriptor_limit()) continue;
    *error = errno;
    return {};
  }
}

SocketAddress local_address(const Socket& socket) {
  SocketAddress address;
  socklen_t length = sizeof address.storage;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address.storage), &length) != 0) {
    throw system_error(errno, "getsockname");
  }
  return address;
}

}  // namespace ropewalk::bootstrap
