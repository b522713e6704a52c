// A TCP connection with a Session on it, driven by the service thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/handshake.h"
#include "bootstrap/service.h"
#include "core/error.h"
#include "core/socket.h"

namespace ropewalk::bootstrap {

/// Why a connection ended.
struct Closing {
  bool established = false;  ///< the other end had proven the secret
  bool refused = false;      ///< nobody listens there
  Errc code = Errc::kPeerLost;
  std::string reason;
};

/// Service thread only. Owned by the object that its functions notify; destroying it closes the
/// socket without calling them.
class Connection {
 public:
  struct Owner {
    std::function<void()> on_established;
    std::function<void(std::vector<std::byte>&)> on_message;
    /// Last call. The connection may be destroyed from within.
    std::function<void(const Closing&)> on_closed;
  };

  /// Connects as a client; a connection that is not established in time is closed.
  static std::unique_ptr<Connection> connect(Service& service, const SocketAddress& peer,
                                             Session session, Service::Clock::time_point deadline,
                                             Owner owner);
  /// Serves an accepted socket.
  static std::unique_ptr<Connection> accept(Service& service, FileDescriptor socket,
                                            Session session, Service::Clock::time_point deadline,
                                            Owner owner);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void set_owner(Owner owner) { owner_ = std::move(owner); }
  /// Queues a message; it is written at once as far as the socket takes it.
  void send(std::span<const std::byte> payload);
  [[nodiscard]] bool established() const noexcept { return session_.established(); }
  [[nodiscard]] bool flushed() const noexcept { return session_.output().empty(); }
  [[nodiscard]] const Claims& claims() const noexcept { return session_.claims(); }
  [[nodiscard]] SocketAddress local() const { return local_address(socket_.get()); }

 private:
  Connection(Service& service, FileDescriptor socket, Session session, bool connecting,
             Owner owner);
  void start(Service::Clock::time_point deadline);
  void on_events(std::uint32_t events);
  void read_all();
  void write_some();
  void want_write(bool wanted);
  void fail(Errc code, bool refused, const std::string& reason);

  Service& service_;
  FileDescriptor socket_;
  Session session_;
  bool connecting_;
  bool wants_write_ = false;
  bool was_established_ = false;
  bool ended_ = false;
  Owner owner_;
  std::uint64_t key_ = 0;
  std::optional<Service::TimerKey> timer_;
  // Shows a member function that calls the owner whether the owner has destroyed the object.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ropewalk::bootstrap
