// Making TCP connections: handles, the listener's half-open connections, the connecting side.
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

/// What a Handle says.
struct Target {
  SocketAddress address;
  Token proof{};  ///< the connecting side sends it
  Reply reply{};  ///< the listener sends it
};
Handle encode(const Target& target);
/// @return nothing when the bytes are no handle of this provider
std::optional<Target> decode_handle(const Handle& handle);

struct Options {
  std::size_t streams = 1;
  bool checksums = false;
};

class TcpListener final : public Listener {
 public:
  TcpListener(const Interface& interface, Options options, Linger& linger);
  [[nodiscard]] const Handle& handle() const override { return handle_; }
  std::unique_ptr<ReceiveConnection> accept() override;

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

  Options options_;
  Linger& linger_;
  FileDescriptor socket_;
  Target target_;
  Handle handle_{};
  std::vector<HalfOpen> half_open_;
  std::vector<Gathering> gathering_;
};

class TcpConnector final : public Connector {
 public:
  TcpConnector(const Interface& interface, const Target& target, Options options, Linger& linger);
  std::unique_ptr<SendConnection> poll() override;

 private:
  struct Attempt {
    FileDescriptor socket;
    bool connected = false;
  };
  // `error`: what connecting returned so far.
  void check(int error) const;

  Target target_;
  Options options_;
  Linger& linger_;
  std::vector<Attempt> attempts_;
};

}  // namespace ropewalk::transport::tcp
