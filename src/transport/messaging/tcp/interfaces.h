// Network interfaces of this machine, chosen as NCCL chooses them.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ropewalk::transport::tcp {

/// An IPv4 or IPv6 address with a port.
struct Address {
  sockaddr_storage storage{};
  [[nodiscard]] int family() const noexcept { return storage.ss_family; }
  [[nodiscard]] socklen_t bytes() const noexcept;
  [[nodiscard]] const sockaddr* get() const noexcept;
  [[nodiscard]] std::string text() const;  ///< "10.0.0.1:4000", "[fe80::1%eth0]:4000"
  [[nodiscard]] std::uint16_t port() const noexcept;
  /// The same but for the port.
  [[nodiscard]] bool same_host(const Address& other) const noexcept;
};

struct Interface {
  std::string name;
  Address address;  ///< IPv4 where there is one, else IPv6, link-local as the last choice
  unsigned index = 0;
  bool loopback = false;
  double speed_mbps = 0;  ///< as the driver says; 10,000 when it does not
  std::uint64_t guid = 0;
  std::string pci_path;
};

/// Whether `name` passes `filter`: a comma list of prefixes, of exact names when '=' is in front,
/// of what is excluded when '^' is in front ("^=" both). An empty filter passes all.
bool passes_filter(std::string_view name, std::string_view filter);

/// The interfaces that are up and have an address. Without a filter: loopback and bridges of
/// containers ("docker") only where there is nothing else.
/// @throws Error kInvalidArgument when a filter leaves nothing
std::vector<Interface> find_interfaces(std::string_view filter);

}  // namespace ropewalk::transport::tcp
