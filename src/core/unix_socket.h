// Unix sockets between processes of one host: names without files, who the peer is, descriptors.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "core/file_descriptor.h"

namespace ropewalk {

/// An address as bind(2) and connect(2) take it.
struct UnixAddress {
  sockaddr_un address{};
  socklen_t bytes = 0;
  [[nodiscard]] const sockaddr* get() const noexcept {
    return reinterpret_cast<const sockaddr*>(&address);
  }
};

/// An address in the abstract name space: no file; it disappears with the last descriptor. Anyone
/// on the host may list such names, and any user may connect.
/// @throws Error kInvalidArgument when the name is too long
UnixAddress abstract_address(std::string_view name);

/// The process at the other end of a connected socket, as it was when it connected or listened.
struct UnixPeer {
  pid_t pid = 0;           ///< as this process sees it; 0 when it cannot be seen
  uid_t user = 0;          ///< its effective user id
  bool same_user = false;  ///< its effective user id is this process's
};
/// @throws Error kSystem
UnixPeer peer_of(int socket);

/// Sends `payload` with a copy of the descriptor `fd` (SCM_RIGHTS). Never waits.
/// @return whether all of it went; errno says why not
bool send_with_descriptor(int socket, std::span<const std::byte> payload, int fd) noexcept;

/// The result of one receive.
struct WithDescriptor {
  std::size_t bytes = 0;      ///< of the payload; 0: the other end closed
  bool truncated = false;     ///< the message was longer than the room for it
  FileDescriptor descriptor;  ///< none when none came with it; closed on exec
};
/// Receives up to `payload.size()` bytes and the descriptor that came with them. Never waits.
/// @return nothing when nothing came yet
/// @throws Error kSystem
std::optional<WithDescriptor> receive_with_descriptor(int socket, std::span<std::byte> payload);

}  // namespace ropewalk
