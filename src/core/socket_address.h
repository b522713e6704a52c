// IPv4 and IPv6 addresses with a port, and their text.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ropewalk {

/// An IPv4 or IPv6 address with port.
struct SocketAddress {
  /// Of an address, in network order; IPv4 has the first 4 bytes, the others are 0.
  using HostBytes = std::array<std::byte, 16>;

  /// `family` is AF_INET or AF_INET6; `scope` is the number of this host's interface that a
  /// link-local IPv6 address belongs to, else 0. Ports and scopes are in the host's byte order.
  static SocketAddress of(int family, const HostBytes& host, std::uint16_t port,
                          std::uint32_t scope);

  [[nodiscard]] int family() const noexcept { return storage.ss_family; }
  [[nodiscard]] socklen_t length() const noexcept;
  [[nodiscard]] const sockaddr* get() const noexcept {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
  [[nodiscard]] HostBytes host_bytes() const noexcept;
  [[nodiscard]] std::uint16_t port() const noexcept;
  void set_port(std::uint16_t port) noexcept;
  [[nodiscard]] std::uint32_t scope() const noexcept;
  void set_scope(std::uint32_t scope) noexcept;
  [[nodiscard]] bool link_local() const noexcept;
  /// The same but for the port.
  [[nodiscard]] bool same_host(const SocketAddress& other) const noexcept;
  /// "10.0.0.1:4711", "[fe80::1%eth0]:4711"; the scope's number where this host has no such
  /// interface.
  [[nodiscard]] std::string text() const;

  sockaddr_storage storage{};
};

/// "host:port", "[v6]:port" -> addresses, through the resolver (getaddrinfo).
/// @throws Error kInvalidArgument when it has another form, kSystem when the name is not resolved
std::vector<SocketAddress> resolve(std::string_view host_and_port);

/// The two ends of a socket (getsockname, getpeername). @throws Error kSystem
SocketAddress local_address(int socket);
SocketAddress peer_address(int socket);

}  // namespace ropewalk
