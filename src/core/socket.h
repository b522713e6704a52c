// Stream sockets: non-blocking, closed on exec and in forked children.
#pragma once

#include <poll.h>

#include <string>

#include "core/file_descriptor.h"
#include "core/socket_address.h"

namespace ropewalk {

/// A stream socket of `family`. When the process is out of descriptors the soft limit is raised to
/// the hard one first. @throws Error kSystem; for want of descriptors the message names the limit
FileDescriptor stream_socket(int family);

/// Sends without delay (TCP_NODELAY); no error on sockets that are not TCP, which have none.
void set_no_delay(int socket) noexcept;

/// bind(2). @throws Error kSystem naming the address
void bind_to(const FileDescriptor& socket, const SocketAddress& address);
/// Listens on `address` (port 0: any), and gives the address with the port that it got in `bound`
/// unless that is nullptr. @throws Error kSystem naming the address
FileDescriptor listen_on(const SocketAddress& address, SocketAddress* bound);

/// Starts to connect: wait for POLLOUT, then ask connect_error().
/// @return 0, or the errno of connect(2) when it cannot even begin
int connect_to(const FileDescriptor& socket, const SocketAddress& peer) noexcept;
/// A new socket that starts to connect. @throws Error kSystem naming the address
FileDescriptor start_connect(const SocketAddress& peer);
/// errno of a finished connect, 0 when it worked.
int connect_error(const FileDescriptor& socket) noexcept;

/// Accepts one connection, and gives its other end's address in `from` unless that is nullptr.
/// Connections that ended meanwhile are passed over. @return none, and errno in `error`, when
///         there is none (EAGAIN) or it cannot be taken
FileDescriptor accept_from(const FileDescriptor& listener, SocketAddress* from, int* error);

/// The system's words for an errno.
std::string system_words(int error);

/// Waits until poll(2) reports one of `events` (POLLIN, POLLOUT, ...) or an error on `fd`, for
/// `timeout_ms` at most, -1: for ever. A signal may end it sooner. @return whether it did
bool wait_ready(int fd, short events, int timeout_ms) noexcept;

}  // namespace ropewalk
