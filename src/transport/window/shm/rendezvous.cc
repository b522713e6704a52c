#include "transport/window/shm/rendezvous.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/random.h"

namespace ropewalk::transport::window {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array<char, 8> kHandleMagic = {'R', 'W', 'S', 'H', 'M', 'h', '1', 0};
constexpr std::array<char, 8> kGreetingMagic = {'R', 'W', 'S', 'H', 'M', 'g', '1', 0};
static_assert(std::is_trivially_copyable_v<Greeting>);

// An end sends its greeting right after it connected.
constexpr auto kGreetingTime = std::chrono::seconds(10);
constexpr std::size_t kMaxWaiting = 128;
constexpr int kMaxAcceptsPerCall = 64;

struct HandleLayout {
  std::array<char, 8> magic;
  MeetingPlace place;
};
static_assert(sizeof(HandleLayout) <= kHandleBytes);

// A leading zero byte makes the name abstract: no file, gone with the last descriptor.
std::pair<sockaddr_un, socklen_t> address_of(const Secret& name) {
  std::string text = "ropewalk-shm-";
  for (const std::byte byte : name) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  RW_ASSERT(text.size() + 1 <= sizeof address.sun_path);
  std::memcpy(address.sun_path + 1, text.data(), text.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size())};
}

FileDescriptor make_socket() {
  // Sequenced packets: a greeting comes whole or not at all.
  FileDescriptor made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made) throw system_error(errno, "Unix socket for shared memory");
  return made;
}

bool equal(const Secret& a, const Secret& b) noexcept {
  std::byte difference{};
  for (std::size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{};
}

Error lost(std::string_view what) { return Error(Errc::kPeerLost, "shared memory: {}", what); }

}  // namespace

Handle encode(const MeetingPlace& place) {
  const HandleLayout layout{kHandleMagic, place};
  Handle handle{};
  std::memcpy(handle.data(), &layout, sizeof layout);
  return handle;
}

std::optional<MeetingPlace> decode_meeting_place(const Handle& handle) {
  HandleLayout layout{};
  std::memcpy(&layout, handle.data(), sizeof layout);
  if (layout.magic != kHandleMagic) return std::nullopt;
  return layout.place;
}

Greeting make_greeting(const Secret& secret, const ProbeAddress& probe) {
  return {kGreetingMagic, secret, probe};
}

void send_greeting(int socket, const Greeting& greeting, int window) {
  iovec range{const_cast<Greeting*>(&greeting), sizeof greeting};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &range;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof window);
  std::memcpy(CMSG_DATA(header), &window, sizeof window);
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) throw lost(system_error(errno, "sending a greeting").what());
}

std::optional<Received> receive_greeting(int socket) {
  Received received;
  iovec range{&received.greeting, sizeof received.greeting};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &range;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return std::nullopt;
    throw lost(system_error(errno, "receiving a greeting").what());
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    received.window = FileDescriptor(fd);
  }
  if (got == 0) throw lost("the other end closed before it was connected");
  if (got != sizeof received.greeting || (message.msg_flags & MSG_TRUNC) != 0 ||
      received.greeting.magic != kGreetingMagic || !received.window) {
    throw lost("what came is no greeting");
  }
  return received;
}

pid_t checked_peer(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    throw system_error(errno, "SO_PEERCRED of a Unix socket");
  }
  if (peer.uid != geteuid()) throw lost("the other end belongs to another user");
  return peer.pid;
}

MeetingPoint::MeetingPoint() : socket_(make_socket()) {
  fill_random(place_.name);
  fill_random(place_.secret);
  const auto [address, bytes] = address_of(place_.name);
  if (bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0) {
    throw system_error(errno, "bind of a Unix socket for shared memory");
  }
  if (listen(socket_.get(), SOMAXCONN) != 0) {
    throw system_error(errno, "listen on a Unix socket for shared memory");
  }
}

std::optional<MeetingPoint::Guest> MeetingPoint::accept() {
  const Clock::time_point now = Clock::now();
  for (int taken = 0; taken < kMaxAcceptsPerCall && waiting_.size() < kMaxWaiting; ++taken) {
    FileDescriptor guest(accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!guest) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      throw system_error(errno, "accept on a Unix socket for shared memory");
    }
    try {
      const pid_t pid = checked_peer(guest.get());
      waiting_.push_back({std::move(guest), pid, now});
    } catch (const Error& error) {
      log::warn("{}", error.what());
    }
  }
  std::optional<Guest> found;
  std::erase_if(waiting_, [&](Waiting& entry) {
    if (found) return false;
    try {
      std::optional<Received> received = receive_greeting(entry.socket.get());
      if (!received) return now - entry.since > kGreetingTime;
      if (equal(received->greeting.secret, place_.secret)) {
        found = Guest{std::move(entry.socket), std::move(*received), entry.pid};
      } else {
        log::warn("shared memory: process {} does not know the handle's secret", entry.pid);
      }
    } catch (const Error& error) {
      log::info(log::kShm, "{}", error.what());
    }
    return true;
  });
  return found;
}

FileDescriptor call(const MeetingPlace& place) {
  FileDescriptor made = make_socket();
  const auto [address, bytes] = address_of(place.name);
  int result = 0;
  do {
    result = connect(made.get(), reinterpret_cast<const sockaddr*>(&address), bytes);
  } while (result != 0 && errno == EINTR);
  if (result != 0) throw lost(system_error(errno, "connecting to the listener").what());
  return made;
}

}  // namespace ropewalk::transport::window
