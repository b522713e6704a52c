#include "transport/window/shm/rendezvous.h"

#include <sys/socket.h>

#include <cerrno>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/random.h"
#include "core/same_secret.h"
#include "core/unix_socket.h"
#include "transport/window/handle_of.h"

namespace ropewalk::transport::window {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array<char, kMarkBytes> kHandleMagic = {'R', 'W', 'm', '2'};
constexpr std::array<char, 8> kGreetingMagic = {'R', 'W', 'S', 'H', 'M', 'g', '1', 0};
static_assert(std::is_trivially_copyable_v<Greeting>);

// An end sends its greeting right after it connected.
constexpr auto kGreetingTime = std::chrono::seconds(10);
constexpr std::size_t kMaxWaiting = 128;
constexpr int kMaxAcceptsPerCall = 64;

UnixAddress address_of(const Name& name) {
  std::string text = "ropewalk-shm-";
  for (const std::byte byte : name) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return abstract_address(text);
}

FileDescriptor make_socket() {
  // Sequenced packets: a greeting comes whole or not at all.
  FileDescriptor made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made) throw system_error(errno, "Unix socket for shared memory");
  return made;
}

Error lost(std::string_view what) { return Error(Errc::kPeerLost, "shared memory: {}", what); }

}  // namespace

Handle encode(const ListenerAddress& address) { return encode_handle(kHandleMagic, address); }

std::optional<ListenerAddress> decode_listener_address(const Handle& handle) {
  return decode_handle<ListenerAddress>(kHandleMagic, handle);
}

Greeting make_greeting(const Secret& secret, const ProbeAddress& probe) {
  return {kGreetingMagic, secret, probe};
}

void send_greeting(int socket, const Greeting& greeting, int window) {
  if (!send_with_descriptor(socket, std::as_bytes(std::span(&greeting, 1)), window)) {
    throw lost(system_error(errno, "sending a greeting").what());
  }
}

std::optional<Received> receive_greeting(int socket) {
  Received received;
  std::optional<WithDescriptor> got;
  try {
    got = receive_with_descriptor(socket, std::as_writable_bytes(std::span(&received.greeting, 1)));
  } catch (const Error& error) {
    throw lost(error.what());
  }
  if (!got) return std::nullopt;
  if (got->bytes == 0) throw lost("the other end closed before it was connected");
  received.window = std::move(got->descriptor);
  if (got->bytes != sizeof received.greeting || got->truncated ||
      received.greeting.magic != kGreetingMagic || !received.window) {
    throw lost("the first message is not a greeting");
  }
  return received;
}

pid_t checked_peer(int socket) {
  const UnixPeer peer = peer_of(socket);
  if (!peer.same_user) throw lost("the other end belongs to another user");
  return peer.pid;
}

MeetingPoint::MeetingPoint() : socket_(make_socket()) {
  fill_random(address_.name);
  fill_random(address_.secret);
  const UnixAddress address = address_of(address_.name);
  if (bind(socket_.get(), address.get(), address.bytes) != 0) {
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
      if (same_secret(received->greeting.secret, address_.secret)) {
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

FileDescriptor call(const ListenerAddress& listener) {
  FileDescriptor made = make_socket();
  const UnixAddress address = address_of(listener.name);
  int result = 0;
  do {
    result = connect(made.get(), address.get(), address.bytes);
  } while (result != 0 && errno == EINTR);
  if (result != 0) throw lost(system_error(errno, "connecting to the listener").what());
  return made;
}

}  // namespace ropewalk::transport::window
