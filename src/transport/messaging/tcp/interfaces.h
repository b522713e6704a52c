// The devices of the TCP transport: one for each network interface of this host that
// core/network_interfaces.h chooses.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/socket_address.h"

namespace ropewalk::transport::tcp {

struct Interface {
  std::string name;
  SocketAddress address;  ///< IPv4 where there is one, else IPv6, link-local as the last choice
  unsigned index = 0;
  bool loopback = false;
  double speed_mbps = 0;  ///< as the driver says; 10,000 when it does not
  std::uint64_t guid = 0;
  std::string subnet;  ///< as InterfaceAddress::subnet
  std::string pci_path;
};

/// The interfaces that are up and have an address. Without a filter: loopback and bridges of
/// containers and virtual machines only where there is nothing else.
/// @throws Error kInvalidArgument when a filter leaves nothing
std::vector<Interface> find_interfaces(std::string_view filter);

/// DeviceProperties::sharing_cost under a congestion control, as the kernel names it.
double sharing_cost(std::string_view congestion_control);

}  // namespace ropewalk::transport::tcp
