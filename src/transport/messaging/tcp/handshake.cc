#include "transport/messaging/tcp/handshake.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/random.h"
#include "core/socket.h"

namespace ropewalk::transport::tcp {
namespace {

using Clock = std::chrono::steady_clock;

// A peer sends its greeting with its first packet, so a socket that is silent for longer is no
// peer. When there is no room for more of them, the oldest go sooner.
constexpr std::size_t kMaxHalfOpen = 128;
constexpr auto kGreetingTime = std::chrono::seconds(10);
// Proven peers whose further streams are still connecting.
constexpr auto kGatherTime = std::chrono::seconds(30);
// New sockets taken by one accept(): keeps the call short while a stranger floods the port.
constexpr int kMaxAcceptsPerCall = 64;

constexpr int kRoomBytes = 1 << 20;

// The layout of a handle. Fields that may be zero come last, since `auto` leaves zeros at the end
// out.
struct HandleLayout {
  HandleMark magic;
  std::uint16_t family;
  std::uint16_t port;  // network order, as in a sockaddr
  Token proof;
  Reply reply;
  std::array<std::byte, 16> address;
  std::uint32_t zone;  // of a link-local address, on the listener's host
};
static_assert(sizeof(HandleLayout) <= kHandleBytes);
// Old releases of NCCL carry 64 bytes, of which the network plugin wants some for itself.
static_assert(sizeof(HandleLayout) <= 60);
static_assert(std::is_trivially_copyable_v<HandleLayout>);

void set_option(int socket, int level, int option, int value) {
  if (setsockopt(socket, level, option, &value, sizeof value) != 0) {
    log::info(log::kNet, "{}", system_error(errno, "setsockopt of a TCP socket").what());
  }
}

void tune(int socket) {
  set_no_delay(socket);
  // A host that vanished without closing: noticed after about 10 s, idle or not. A process that
  // died is noticed at once, its system says so.
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 5);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 10'000);
}

// Between two sockets of one host congestion control has no rate to find. An algorithm that paces
// its packets, such as bbr, the default of many systems, halves the rate of a stream: 4.8 GB/s
// instead of 9.6 over loopback. Every system has reno, which does not pace, and lets every process
// choose it.
void leave_unpaced(int socket) {
  try {
    if (!local_address(socket).same_host(peer_address(socket))) return;
  } catch (const Error&) {
    return;  // it broke already, which shows when it is used
  }
  constexpr std::string_view kUnpaced = "reno";
  if (setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, kUnpaced.data(), kUnpaced.size()) != 0) {
    log::info(log::kNet, "{}", system_error(errno, "congestion control of a TCP socket").what());
  }
}

// Room for what a sender may have in flight. The system makes a buffer larger as it sees its reader
// keep up, which a reader of several sockets does not appear to do: of one that gathers from three
// it stopped at 0.4 MiB, and they waited for the window most of the time. SO_RCVBUF would turn the
// automatic growth off, and is bounded by net.core.rmem_max, often 0.2 MiB; a low water mark
// (SO_RCVLOWAT) makes room and keeps the growth.
void make_room(int socket) {
  set_option(socket, SOL_SOCKET, SO_RCVLOWAT, kRoomBytes);
  set_option(socket, SOL_SOCKET, SO_RCVLOWAT, 1);
}

}  // namespace

Handle encode(const Target& target, const HandleMark& mark) {
  HandleLayout layout{};
  layout.magic = mark;
  layout.proof = target.proof;
  layout.reply = target.reply;
  layout.family = static_cast<std::uint16_t>(target.address.family());
  layout.port = htons(target.address.port());
  layout.zone = target.address.scope();
  layout.address = target.address.host_bytes();
  Handle handle{};
  std::memcpy(handle.data(), &layout, sizeof layout);
  return handle;
}

std::optional<Target> decode_handle(const Handle& handle, const HandleMark& mark) {
  HandleLayout layout{};
  std::memcpy(&layout, handle.data(), sizeof layout);
  if (layout.magic != mark || layout.port == 0) return std::nullopt;
  Target target;
  target.proof = layout.proof;
  target.reply = layout.reply;
  if (layout.family != AF_INET && layout.family != AF_INET6) return std::nullopt;
  target.address =
      SocketAddress::of(layout.family, layout.address, ntohs(layout.port), layout.zone);
  return target;
}

// ---- listening -----------------------------------------------------------------------------

Acceptor::Acceptor(const Interface& interface) {
  SocketAddress own = interface.address;
  own.set_port(0);
  socket_ = listen_on(own, &target_.address);
  fill_random(target_.proof);
  fill_random(target_.reply);
}

std::optional<Acceptor::Accepted> Acceptor::accept() {
  take_new_sockets();
  read_greetings();
  const auto complete =
      std::find_if(gathering_.begin(), gathering_.end(),
                   [](const Gathering& entry) { return entry.present == entry.streams.size(); });
  if (complete == gathering_.end()) return std::nullopt;
  Accepted accepted{std::move(complete->streams), std::move(complete->peer)};
  gathering_.erase(complete);
  for (const FileDescriptor& socket : accepted.sockets) tune(socket.get());
  return accepted;
}

void Acceptor::take_new_sockets() {
  for (int taken = 0; taken < kMaxAcceptsPerCall; ++taken) {
    SocketAddress from;
    int error = 0;
    FileDescriptor socket = accept_from(socket_, &from, &error);
    if (!socket) {
      if (error == EAGAIN || error == EWOULDBLOCK) return;
      throw system_error(error, fmt::format("accept on {}", target_.address.text()));
    }
    // Room by age: a peer's greeting is there with its connection, so it has been read before.
    if (half_open_.size() >= kMaxHalfOpen) half_open_.erase(half_open_.begin());
    half_open_.push_back({std::move(socket), from.text(), {}, Clock::now()});
    if (half_open_.size() >= kMaxHalfOpen) read_greetings();
  }
}

void Acceptor::read_greetings() {
  const Clock::time_point now = Clock::now();
  std::erase_if(half_open_, [&](HalfOpen& entry) {
    std::array<std::byte, kHelloBytes> piece{};
    const ssize_t got =
        recv(entry.socket.get(), piece.data(), kHelloBytes - entry.greeting.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
      return now - entry.since > kGreetingTime;
    }
    if (got <= 0) return true;
    entry.greeting.insert(entry.greeting.end(), piece.begin(), piece.begin() + got);
    Hello hello;
    switch (judge_hello(entry.greeting, target_.proof, hello)) {
      case HelloState::kIncomplete: return now - entry.since > kGreetingTime;
      case HelloState::kProven: gather(entry, hello); return true;
      case HelloState::kStranger:
        log::info(log::kNet, "tcp: hung up on {}: it does not know the handle's secret",
                  entry.peer);
        return true;
    }
    return true;
  });
  std::erase_if(gathering_, [&](const Gathering& entry) {
    return entry.present < entry.streams.size() && now - entry.since > kGatherTime;
  });
}

void Acceptor::gather(HalfOpen& entry, const Hello& hello) {
  auto group = std::find_if(gathering_.begin(), gathering_.end(), [&](const Gathering& other) {
    return other.connection == hello.connection;
  });
  if (group == gathering_.end()) {
    group = gathering_.emplace(gathering_.end());
    group->connection = hello.connection;
    group->peer = entry.peer;
    group->streams.resize(hello.streams);
    group->since = Clock::now();
  }
  if (group->streams.size() != hello.streams || group->streams[hello.stream]) {
    log::warn("tcp: {} sent stream {} of {} twice; dropped", entry.peer, hello.stream,
              hello.streams);
    return;
  }
  group->streams[hello.stream] = std::move(entry.socket);
  ++group->present;
}

TcpListener::TcpListener(const Interface& interface, Options options, Linger& linger)
    : options_(options),
      linger_(linger),
      acceptor_(interface),
      handle_(encode(acceptor_.target())) {}

std::unique_ptr<ReceiveConnection> TcpListener::accept() {
  linger_.poll();
  std::optional<Acceptor::Accepted> accepted = acceptor_.accept();
  if (!accepted) return nullptr;
  std::vector<Stream> streams;
  for (FileDescriptor& socket : accepted->sockets) {
    leave_unpaced(socket.get());
    make_room(socket.get());
    streams.emplace_back(std::move(socket), Reader::kReceiver);
    streams.back().queue_raw(encode(acceptor_.target().reply));
  }
  log::info(log::kNet, "tcp: accepted {} streams from {}", streams.size(), accepted->peer);
  return std::make_unique<TcpReceiver>(std::move(streams), std::move(accepted->peer),
                                       options_.checksums, linger_);
}

// ---- connecting ----------------------------------------------------------------------------

Dialer::Dialer(const Interface& interface, const Target& target, std::size_t streams)
    : target_(target), attempts_(streams) {
  // A zone is a number of this host's own interfaces: the listener's is meaningless here.
  if (target_.address.scope() != 0) target_.address.set_scope(interface.index);
  for (Attempt& attempt : attempts_) {
    attempt.socket = stream_socket(target_.address.family());
    tune(attempt.socket.get());
    // From this device's own address, so that its traffic uses it. Loopback reaches only this host,
    // and an address of the other family nothing: there the system chooses.
    if (!interface.loopback && interface.address.family() == target_.address.family()) {
      set_option(attempt.socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
      SocketAddress own = interface.address;
      own.set_port(0);
      bind_to(attempt.socket, own);
    }
    check(connect_to(attempt.socket, target_.address));
  }
}

void Dialer::check(int error) const {
  if (error == 0) return;
  throw Error(Errc::kPeerLost, "{}",
              system_error(error, fmt::format("connect to {}", target_.address.text())).what());
}

std::optional<std::vector<FileDescriptor>> Dialer::poll() {
  if (attempts_.empty()) {
    throw Error(Errc::kInvalidUsage, "poll of a connector that has handed out its connection");
  }
  bool all = true;
  for (Attempt& attempt : attempts_) {
    if (!attempt.connected && wait_ready(attempt.socket.get(), POLLOUT, 0)) {
      check(connect_error(attempt.socket));
      attempt.connected = true;
    }
    all = all && attempt.connected;
  }
  if (!all) return std::nullopt;
  std::vector<FileDescriptor> sockets;
  for (Attempt& attempt : attempts_) sockets.push_back(std::move(attempt.socket));
  attempts_.clear();
  return sockets;
}

TcpConnector::TcpConnector(const Interface& interface, const Target& target, Options options,
                           Linger& linger)
    : options_(options), linger_(linger), dialer_(interface, target, options.streams) {}

std::unique_ptr<SendConnection> TcpConnector::poll() {
  linger_.poll();
  std::optional<std::vector<FileDescriptor>> sockets = dialer_.poll();
  if (!sockets) return nullptr;
  const Target& target = dialer_.target();
  Hello hello;
  hello.token = target.proof;
  fill_random(hello.connection);
  hello.streams = static_cast<std::uint16_t>(sockets->size());
  std::vector<Stream> streams;
  for (FileDescriptor& socket : *sockets) {
    leave_unpaced(socket.get());
    streams.emplace_back(std::move(socket), Reader::kSender);
    streams.back().queue_raw(encode(hello));
    ++hello.stream;
  }
  return std::make_unique<TcpSender>(std::move(streams), target.address.text(), target.reply,
                                     options_.checksums, linger_);
}

}  // namespace ropewalk::transport::tcp
