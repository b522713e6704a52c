#include "core/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>

#include "core/error.h"

namespace ropewalk {
namespace {

constexpr int kBacklog = 4096;

// Errors of a connection that has already ended, or of the network: accept(2) says to continue.
bool concerns_one_connection(int error) {
  return error == EINTR || error == ECONNABORTED || error == EPROTO || error == ENETDOWN ||
         error == EHOSTDOWN || error == EHOSTUNREACH || error == ENETUNREACH;
}

}  // namespace

FileDescriptor stream_socket(int family) {
  for (;;) {
    const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) return FileDescriptor(fd, FileDescriptor::InForkedChild::kClosed);
    if (errno == EMFILE && raise_descriptor_limit()) continue;
    const int error = errno;
    if (error != EMFILE) throw system_error(error, "socket");
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    throw Error(Errc::kSystem, "{} (the limit is {}, see ulimit -n)",
                system_error(error, "socket").what(), limit.rlim_cur);
  }
}

void set_no_delay(int socket) noexcept {
  const int on = 1;
  (void)setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void bind_to(const FileDescriptor& socket, const SocketAddress& address) {
  if (::bind(socket.get(), address.get(), address.length()) != 0) {
    throw system_error(errno, fmt::format("bind to {}", address.text()));
  }
}

FileDescriptor listen_on(const SocketAddress& address, SocketAddress* bound) {
  FileDescriptor socket = stream_socket(address.family());
  const int on = 1;
  // A fixed port (rendezvous) may have connections of an earlier job in TIME_WAIT.
  (void)setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  bind_to(socket, address);
  if (::listen(socket.get(), kBacklog) != 0) {
    throw system_error(errno, fmt::format("listen on {}", address.text()));
  }
  if (bound != nullptr) *bound = local_address(socket.get());
  return socket;
}

int connect_to(const FileDescriptor& socket, const SocketAddress& peer) noexcept {
  if (::connect(socket.get(), peer.get(), peer.length()) == 0) return 0;
  return errno == EINPROGRESS || errno == EINTR ? 0 : errno;  // it goes on after a signal
}

FileDescriptor start_connect(const SocketAddress& peer) {
  FileDescriptor socket = stream_socket(peer.family());
  set_no_delay(socket.get());
  if (const int error = connect_to(socket, peer); error != 0) {
    throw system_error(error, fmt::format("connect to {}", peer.text()));
  }
  return socket;
}

int connect_error(const FileDescriptor& socket) noexcept {
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

FileDescriptor accept_from(const FileDescriptor& listener, SocketAddress* from, int* error) {
  for (;;) {
    SocketAddress peer;
    socklen_t length = sizeof peer.storage;
    const int fd = ::accept4(listener.get(), reinterpret_cast<sockaddr*>(&peer.storage), &length,
                             SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      set_no_delay(fd);
      if (from != nullptr) *from = peer;
      *error = 0;
      return FileDescriptor(fd, FileDescriptor::InForkedChild::kClosed);
    }
    if (concerns_one_connection(errno)) continue;
    if (errno == EMFILE && raise_descriptor_limit()) continue;
    *error = errno;
    return {};
  }
}

std::string system_words(int error) { return std::generic_category().message(error); }

bool wait_ready(int fd, short events, int timeout_ms) noexcept {
  pollfd entry{};
  entry.fd = fd;
  entry.events = events;
  return ::poll(&entry, 1, timeout_ms) > 0;
}

}  // namespace ropewalk
