#include "transport/messaging/tcp/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include "core/error.h"

namespace ropewalk::transport::tcp {
namespace {

constexpr double kUnknownSpeedMbps = 10'000;

// Lower is better.
int rank_of(const sockaddr& address) {
  if (address.sa_family == AF_INET) return 0;
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  return IN6_IS_ADDR_LINKLOCAL(&six.sin6_addr) ? 2 : 1;
}

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

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

void set_address(Interface& interface, const sockaddr& address) {
  interface.address = Address();
  interface.address.storage.ss_family = address.sa_family;
  std::memcpy(&interface.address.storage, &address, interface.address.bytes());
}

}  // namespace

socklen_t Address::bytes() const noexcept {
  return family() == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

const sockaddr* Address::get() const noexcept {
  return reinterpret_cast<const sockaddr*>(&storage);
}

std::uint16_t Address::port() const noexcept {
  return ntohs(family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                                    : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

bool Address::same_host(const Address& other) const noexcept {
  if (family() != other.family()) return false;
  if (family() == AF_INET6) {
    const auto& own = reinterpret_cast<const sockaddr_in6&>(storage);
    const auto& others = reinterpret_cast<const sockaddr_in6&>(other.storage);
    return IN6_ARE_ADDR_EQUAL(&own.sin6_addr, &others.sin6_addr) &&
           own.sin6_scope_id == others.sin6_scope_id;
  }
  return reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr ==
         reinterpret_cast<const sockaddr_in&>(other.storage).sin_addr.s_addr;
}

std::string Address::text() const {
  std::array<char, INET6_ADDRSTRLEN> buffer{};
  if (family() == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(storage).sin_addr, buffer.data(),
              buffer.size());
    return fmt::format("{}:{}", buffer.data(), port());
  }
  const auto& six = reinterpret_cast<const sockaddr_in6&>(storage);
  inet_ntop(AF_INET6, &six.sin6_addr, buffer.data(), buffer.size());
  std::array<char, IF_NAMESIZE> zone{};
  if (six.sin6_scope_id != 0 && if_indextoname(six.sin6_scope_id, zone.data()) != nullptr) {
    return fmt::format("[{}%{}]:{}", buffer.data(), zone.data(), port());
  }
  return fmt::format("[{}]:{}", buffer.data(), port());
}

bool passes_filter(std::string_view name, std::string_view filter) {
  if (filter.empty()) return true;
  const bool excluding = filter.starts_with('^');
  if (excluding) filter.remove_prefix(1);
  const bool exact = filter.starts_with('=');
  if (exact) filter.remove_prefix(1);
  bool listed = false;
  while (!filter.empty()) {
    const std::size_t comma = std::min(filter.find(','), filter.size());
    const std::string_view entry = filter.substr(0, comma);
    filter.remove_prefix(std::min(comma + 1, filter.size()));
    if (!entry.empty() && (exact ? name == entry : name.starts_with(entry))) listed = true;
  }
  return listed != excluding;
}

std::vector<Interface> find_interfaces(std::string_view filter) {
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) throw system_error(errno, "getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(raw, freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (!passes_filter(entry->ifa_name, filter)) continue;
    auto same = std::find_if(found.begin(), found.end(), [&](const Interface& interface) {
      return interface.name == entry->ifa_name;
    });
    if (same == found.end()) {
      Interface interface;
      interface.name = entry->ifa_name;
      interface.index = if_nametoindex(entry->ifa_name);
      interface.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
      set_address(interface, *entry->ifa_addr);
      found.push_back(interface);
    } else if (rank_of(*entry->ifa_addr) < rank_of(*same->address.get())) {
      set_address(*same, *entry->ifa_addr);
    }
  }
  if (filter.empty()) {
    const auto last_choice = [](const Interface& interface) {
      return interface.loopback || interface.name.starts_with("docker");
    };
    if (!std::all_of(found.begin(), found.end(), last_choice)) std::erase_if(found, last_choice);
  } else if (found.empty()) {
    throw Error(Errc::kInvalidArgument,
                "SOCKET_IFNAME '{}': no network interface that is up matches", filter);
  }
  for (Interface& interface : found) read_sysfs(interface);
  return found;
}

}  // namespace ropewalk::transport::tcp
