// Making TCP connections: handles, the listener's half-open connections, the connecting side.
//
// Acceptor and Dialer give proven sockets: side channels (messaging/meeting.h) are made by them,
// too.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/socket_address.h"
#include "transport/messaging/tcp/connection.h"
#include "transport/messaging/tcp/interfaces.h"
#include "transport/transport.h"

namespace ropewalk::transport::tcp {

/// The contents of a Handle.
struct Target {
  SocketAddress address;
  Token proof{};  ///< the connecting side sends it
  Reply reply{};  ///< the listener sends it
};
/// The first bytes of a handle, which identify the provider.
using HandleMark = std::array<char, 4>;
inline constexpr HandleMark kTcpMark = {'R', 'W', 't', '3'};
Handle encode(const Target& target, const HandleMark& mark = kTcpMark);
/// @return nothing when the bytes are not a handle of this provider
std::optional<Target> decode_handle(const Handle& handle, const HandleMark& mark = kTcpMark);

struct Options {
  std::size_t streams = 1;
  bool checksums = false;
};

/// Listens, and hands out the sockets of those who know the handle's secret.
class Acceptor {
 public:
  explicit Acceptor(const Interface& interface);
  [[nodiscard]] const Target& target() const noexcept { return target_; }
  /// The sockets of one connection, as many as the connecting end has.
  struct Accepted {
    std::vector<FileDescriptor> sockets;
    std::string peer;
  };
  /// @return nothing until a connection is complete
  std::optional<Accepted> accept();

 private:
  // A socket whose greeting is not complete.
  struct HalfOpen {
    FileDescriptor socket;
    std::string peer;
    std::vector<std::byte> greeting;
    std::chrono::steady_clock::time_point since;
  };
  // Proven streams of a connection that is not complete.
  struct Gathering {
    Token connection{};
    std::string peer;
    std::vector<FileDescriptor> streams;
    std::size_t present = 0;
    std::chrono::steady_clock::time_point since;
  };
  void take_new_sockets();
  void read_greetings();
  void gather(HalfOpen& entry, const Hello& hello);

  FileDescriptor socket_;
  Target target_;
  std::vector<HalfOpen> half_open_;
  std::vector<Gathering> gathering_;
};

/// Connects the sockets of one connection. Their greetings are left to the caller.
class Dialer {
 public:
  Dialer(const Interface& interface, const Target& target, std::size_t streams);
  [[nodiscard]] const Target& target() const noexcept { return target_; }
  /// @return the sockets once all are connected; then it has none
  std::optional<std::vector<FileDescriptor>> poll();

 private:
  struct Attempt {
    FileDescriptor socket;
    bool connected = false;
  };
  // `error`: what connecting returned so far.
  void check(int error) const;

  Target target_;
  std::vector<Attempt> attempts_;
};

class TcpListener final : public Listener {
 public:
  TcpListener(const Interface& interface, Options options, Linger& linger);
  [[nodiscard]] const Handle& handle() const override { return handle_; }
  std::unique_ptr<ReceiveConnection> accept() override;

 private:
  Options options_;
  Linger& linger_;
  Acceptor acceptor_;
  Handle handle_{};
};

class TcpConnector final : public Connector {
 public:
  TcpConnector(const Interface& interface, const Target& target, Options options, Linger& linger);
  std::unique_ptr<SendConnection> poll() override;

 private:
  Options options_;
  Linger& linger_;
  Dialer dialer_;
};

}  // namespace ropewalk::transport::tcp
