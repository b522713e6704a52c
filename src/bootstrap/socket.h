// Sockets of the bootstrap: owned, close-on-exec, non-blocking, and closed in forked children.
#pragma once

#include <string>

#include "bootstrap/address.h"

namespace ropewalk::bootstrap {

/// Owns a file descriptor. A fork handler closes all of them in a child process: a dup held by a
/// child that outlives its parent would hide the parent's death.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd);
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket();

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] explicit operator bool() const noexcept { return fd_ >= 0; }
  void close() noexcept;

 private:
  int fd_ = -1;
};

/// Calls `handler` in every forked child, after its sockets were closed. At most 8 handlers.
void call_in_forked_child(void (*handler)());

/// A socket of `family`. When the process is out of descriptors the soft limit is raised to the
/// hard one first. @throws Error kSystem; for the limit the message tells it
Socket new_socket(int family);

/// Listens on `address` (port 0: any) and returns the address with the port that it got.
Socket listen_on(const SocketAddress& address, SocketAddress* bound);

/// Starts to connect; writable when done. Check connect_error() then.
Socket start_connect(const SocketAddress& peer);
/// errno of a finished connect, 0 when it worked.
int connect_error(const Socket& socket);

/// Accepts one connection. @return an empty Socket and errno when there is none
Socket accept_from(const Socket& listener, int* error);

SocketAddress local_address(const Socket& socket);

/// Raises the soft limit of open files to the hard one. @return true when that gained any
bool raise_descriptor_limit() noexcept;

/// The system's words for an errno.
std::string system_words(int error);

}  // namespace ropewalk::bootstrap
