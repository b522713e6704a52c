// Socket addresses, and the choice of the network interface that the bootstrap listens on.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ropewalk::bootstrap {

/// An IPv4 or IPv6 address with port.
struct SocketAddress {
  sockaddr_storage storage{};

  [[nodiscard]] socklen_t length() const noexcept;
  [[nodiscard]] std::uint16_t port() const noexcept;
  void set_port(std::uint16_t port) noexcept;
  [[nodiscard]] const sockaddr* get() const noexcept {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
  /// "10.0.0.1:4711", "[fe80::1%2]:4711".
  [[nodiscard]] std::string text() const;
};

/// One address of one interface that is up.
struct InterfaceAddress {
  std::string name;
  SocketAddress address;
  bool loopback = false;
};

/// The usable addresses of this host (this network namespace), in the system's order.
std::vector<InterfaceAddress> interface_addresses();

/// The addresses that SOCKET_IFNAME `pattern` admits, best first. As NCCL's: a comma list of name
/// prefixes; "=" in front: exact names; "^" in front: all but these ("^=": all but these exact
/// names). Empty: all; bridges of containers (docker*, virbr*) after others, loopback last.
/// Within one interface IPv4 comes first, then global IPv6, link-local IPv6 last.
std::vector<InterfaceAddress> choose_interfaces(const std::vector<InterfaceAddress>& all,
                                                std::string_view pattern);

/// "host:port", "[v6]:port" -> addresses, through the resolver. @throws Error kInvalidArgument,
/// kSystem when the name cannot be resolved
std::vector<SocketAddress> resolve(std::string_view host_and_port);

}  // namespace ropewalk::bootstrap
