#include "transport/messaging/tcp/interfaces.h"

#include <net/if.h>

#include <charconv>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/first_line.h"
#include "core/network_interfaces.h"
#include "transport/transport.h"

namespace ropewalk::transport::tcp {
namespace {

constexpr double kUnknownSpeedMbps = 10'000;

void read_sysfs(Interface& interface) {
  const std::filesystem::path folder = "/sys/class/net/" + interface.name;
  const std::string speed = first_line(folder / "speed");
  double mbps = 0;
  std::from_chars(speed.data(), speed.data() + speed.size(), mbps);
  interface.speed_mbps = mbps > 0 ? mbps : kUnknownSpeedMbps;
  std::string hardware = first_line(folder / "address");
  std::erase(hardware, ':');
  std::from_chars(hardware.data(), hardware.data() + hardware.size(), interface.guid, 16);
  std::error_code none;
  const std::filesystem::path device = std::filesystem::canonical(folder / "device", none);
  if (!none) interface.pci_path = device.string();
}

}  // namespace

std::vector<Interface> find_interfaces(std::string_view filter) {
  const std::vector<InterfaceAddress> all = interface_addresses();
  const std::vector<InterfaceAddress> best = one_of_each(all, filter);
  if (best.empty() && !filter.empty()) throw_no_interface(all, filter);
  std::vector<Interface> found;
  for (const InterfaceAddress& chosen : best) {
    Interface interface;
    interface.name = chosen.name;
    interface.address = chosen.address;
    interface.index = if_nametoindex(chosen.name.c_str());
    interface.loopback = chosen.loopback;
    interface.subnet = chosen.subnet;
    read_sysfs(interface);
    found.push_back(std::move(interface));
  }
  return found;
}

double sharing_cost(std::string_view congestion_control) {
  // BBR paces each connection by what that one was seen to deliver, so that connections which share
  // a network interface, and take turns or lose packets, may not fill it: over interfaces of 20 and
  // 10 MB/s (tc-tbf) an all-reduce of 4 MiB by four connections on each took 0.33 to 0.70 s, and
  // 0.16 s by one; under Reno 0.16 by either. Over one interface of 40 MB/s both did alike.
  constexpr double kOfBbr = 0.15;
  return congestion_control.starts_with("bbr") ? kOfBbr : DeviceProperties().sharing_cost;
}

}  // namespace ropewalk::transport::tcp
