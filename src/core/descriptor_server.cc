#include "core/descriptor_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/random.h"
#include "core/socket.h"
#include "core/unix_socket.h"

namespace ropewalk {
namespace {

// A descriptor travels with at least one byte.
constexpr std::array kPayload = {std::byte{'F'}};

constexpr std::size_t kNameLetters = 32;
constexpr std::chrono::milliseconds kLookPeriod{100};

std::string random_name() {
  std::array<std::byte, kNameLetters / 2> secret;
  fill_random(secret);
  std::string name;
  for (const std::byte byte : secret) name += fmt::format("{:02x}", std::to_integer<int>(byte));
  return name;
}

UnixAddress address_of(std::string_view name) {
  return abstract_address(fmt::format("ropewalk-{}", name));
}

int milliseconds_left(std::chrono::steady_clock::time_point deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000));
}

bool wait_readable(int socket, std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    const int left = milliseconds_left(deadline);
    if (wait_ready(socket, POLLIN, left)) return true;
    if (left == 0) return false;
  }
}

}  // namespace

DescriptorServer::DescriptorServer()
    : name_(random_name()),
      socket_(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
  if (!socket_) throw system_error(errno, "socket for descriptors");
  const UnixAddress address = address_of(name_);
  if (bind(socket_.get(), address.get(), address.bytes) != 0) {
    throw system_error(errno, "bind of a descriptor socket");
  }
  if (listen(socket_.get(), SOMAXCONN) != 0) {
    throw system_error(errno, "listen of a descriptor socket");
  }
}

DescriptorServer::~DescriptorServer() = default;

int DescriptorServer::serve(int fd) {
  int served = 0;
  for (;;) {
    const FileDescriptor receiver(
        accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!receiver) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return served;
      throw system_error(errno, "accept on a descriptor socket");
    }
    if (!peer_of(receiver.get()).same_user) {
      log::warn("refused to hand shared memory to a process of another user");
      continue;
    }
    if (send_with_descriptor(receiver.get(), kPayload, fd)) ++served;
  }
}

void DescriptorServer::serve(int fd, int receivers, std::chrono::steady_clock::time_point deadline,
                             const std::function<void()>& meanwhile) {
  using Clock = std::chrono::steady_clock;
  int served = 0;
  Clock::time_point look = Clock::now() + kLookPeriod;
  for (;;) {
    served += serve(fd);
    if (served >= receivers) return;
    wait_readable(socket_.get(), std::min(look, deadline));
    const Clock::time_point now = Clock::now();
    if (now >= look) {
      meanwhile();
      look = now + kLookPeriod;
    }
    if (now >= deadline) {
      throw Error(Errc::kTimeout, "only {} of {} processes fetched their shared memory in time",
                  served, receivers);
    }
  }
}

FileDescriptor fetch_descriptor(std::string_view name,
                                std::chrono::steady_clock::time_point deadline) {
  // Not blocking: connect would else wait, without limit, for room in the server's queue.
  const FileDescriptor receiver(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!receiver) throw system_error(errno, "socket for descriptors");
  const UnixAddress address = address_of(name);
  while (connect(receiver.get(), address.get(), address.bytes) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) throw system_error(errno, "connecting to a peer's descriptor socket");
    if (milliseconds_left(deadline) == 0) {
      throw Error(Errc::kTimeout, "connecting to a peer's descriptor socket: its queue is full");
    }
    // The queue is full: nothing to wait on but time.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!peer_of(receiver.get()).same_user) {
    throw Error(Errc::kSystem, "a process of another user owns the peer's descriptor socket");
  }
  if (!wait_readable(receiver.get(), deadline)) {
    throw Error(Errc::kTimeout, "a peer did not hand over its shared memory in time");
  }
  std::array<std::byte, kPayload.size()> payload{};
  std::optional<WithDescriptor> received = receive_with_descriptor(receiver.get(), payload);
  if (!received || received->bytes == 0 || !received->descriptor) {
    throw Error(Errc::kSystem, "receiving a descriptor: the server closed without sending one");
  }
  return std::move(received->descriptor);
}

}  // namespace ropewalk
