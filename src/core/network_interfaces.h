// The network interfaces of this host (this network namespace), and the choice that the setting
// SOCKET_IFNAME makes among them, which is as NCCL's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/socket_address.h"

namespace ropewalk {

/// One address of one interface that is up.
struct InterfaceAddress {
  std::string name;
  SocketAddress address;  ///< its port is 0
  bool loopback = false;
  std::string
      subnet;  ///< "10.0.0.0/24"; "" of link-local addresses, which have one subnet anywhere
};

/// The subnet of an address, of the same family as the mask: "10.0.0.0/24", "fd00::/64".
std::string subnet_of(const SocketAddress& address, const SocketAddress& mask);

/// All of them, in the system's order (getifaddrs). @throws Error kSystem
std::vector<InterfaceAddress> interface_addresses();

/// Whether an interface is up and has a carrier, and whether it has an address for connections.
struct InterfaceState {
  bool running = false;
  bool has_address = false;
};
/// @throws Error kSystem
InterfaceState interface_state(std::string_view name);

/// Whether an interface called `name` passes SOCKET_IFNAME: a comma list of name prefixes; "=" in
/// front: of exact names; "^" in front: of what is excluded ("^=": exact names that are). An empty
/// list excludes nothing.
bool passes_filter(std::string_view name, std::string_view filter);

/// Loopback, and bridges of containers and virtual machines (docker*, br- with an identity of
/// Docker's, virbr*, cni*, podman*, lxcbr*, lxdbr*), which other hosts do not reach: used only
/// where a filter names them or there is nothing else.
bool is_last_choice(const InterfaceAddress& candidate);

/// Lower is better. By interface: loopback last, is_last_choice() before it; within one: IPv4, then
/// global IPv6, then link-local IPv6.
int preference(const InterfaceAddress& candidate);

/// Those that pass the filter, best first; equal ones stay in order.
std::vector<InterfaceAddress> choose_interfaces(const std::vector<InterfaceAddress>& all,
                                                std::string_view filter);

/// Of each interface that passes the filter its best address, in the system's order. Without a
/// filter the last choices only where there is nothing else.
std::vector<InterfaceAddress> one_of_each(const std::vector<InterfaceAddress>& all,
                                          std::string_view filter);

/// Throws the Error of a `filter` that none of `all` passes, which it names: kInvalidArgument, or
/// kSystem when the filter is empty.
[[noreturn]] void throw_no_interface(const std::vector<InterfaceAddress>& all,
                                     std::string_view filter);

/// The address that a service listens on: the best that passes. @throws as throw_no_interface
InterfaceAddress best_interface(std::string_view filter);

}  // namespace ropewalk
