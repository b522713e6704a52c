#include "core/unix_socket.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "core/error.h"

namespace ropewalk {
namespace {

// A message of one range with room for one descriptor.
struct Message {
  explicit Message(iovec payload) : range(payload) {
    header.msg_iov = &range;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  ~Message() = default;
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  iovec range;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
};

}  // namespace

UnixAddress abstract_address(std::string_view name) {
  UnixAddress result;
  // A leading zero byte makes the name abstract.
  if (name.size() + 1 > sizeof result.address.sun_path) {
    throw Error(Errc::kInvalidArgument, "the name '{}' is too long for a Unix socket", name);
  }
  result.address.sun_family = AF_UNIX;
  std::memcpy(result.address.sun_path + 1, name.data(), name.size());
  result.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

UnixPeer peer_of(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    throw system_error(errno, "getsockopt(SO_PEERCRED) of a Unix socket");
  }
  return {peer.pid, peer.uid, peer.uid == geteuid()};
}

bool send_with_descriptor(int socket, std::span<const std::byte> payload, int fd) noexcept {
  Message message({const_cast<std::byte*>(payload.data()), payload.size()});
  cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &message.header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent >= 0 && static_cast<std::size_t>(sent) == payload.size();
}

std::optional<WithDescriptor> receive_with_descriptor(int socket, std::span<std::byte> payload) {
  Message message({payload.data(), payload.size()});
  ssize_t received = 0;
  do {
    received = recvmsg(socket, &message.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::nullopt;
    throw system_error(errno, "receiving a descriptor");
  }
  WithDescriptor result;
  result.bytes = static_cast<std::size_t>(received);
  result.truncated = (message.header.msg_flags & MSG_TRUNC) != 0;
  const cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    result.descriptor = FileDescriptor(fd);
  }
  return result;
}

}  // namespace ropewalk
