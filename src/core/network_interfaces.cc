#include "core/network_interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>

#include "core/error.h"

namespace ropewalk {
namespace {

using Entries = std::unique_ptr<ifaddrs, decltype(&freeifaddrs)>;

Entries list_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) throw system_error(errno, "getifaddrs");
  return {list, freeifaddrs};
}

bool has_address(const ifaddrs& entry) {
  return entry.ifa_addr != nullptr &&
         (entry.ifa_addr->sa_family == AF_INET || entry.ifa_addr->sa_family == AF_INET6);
}

SocketAddress address_in(const sockaddr* found) {
  SocketAddress address;
  std::memcpy(&address.storage, found,
              found->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
  address.set_port(0);
  return address;
}

}  // namespace

std::string subnet_of(const SocketAddress& address, const SocketAddress& mask) {
  const SocketAddress::HostBytes bits = mask.host_bytes();
  SocketAddress::HostBytes host = address.host_bytes();
  int prefix = 0;
  for (std::size_t i = 0; i < host.size(); ++i) {
    host[i] &= bits[i];
    prefix += std::popcount(std::to_integer<unsigned>(bits[i]));
  }
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(address.family(), host.data(), text.data(), text.size());
  return fmt::format("{}/{}", text.data(), prefix);
}

std::vector<InterfaceAddress> interface_addresses() {
  const Entries list = list_interfaces();
  std::vector<InterfaceAddress> result;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (!has_address(*entry) || (entry->ifa_flags & IFF_UP) == 0) continue;
    InterfaceAddress found;
    found.name = entry->ifa_name;
    found.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    found.address = address_in(entry->ifa_addr);
    if (entry->ifa_netmask != nullptr && !found.address.link_local()) {
      // Some systems leave the mask's family out.
      sockaddr_storage mask{};
      std::memcpy(&mask, entry->ifa_netmask, found.address.length());
      mask.ss_family = static_cast<sa_family_t>(found.address.family());
      found.subnet = subnet_of(found.address, address_in(reinterpret_cast<const sockaddr*>(&mask)));
    }
    result.push_back(std::move(found));
  }
  return result;
}

InterfaceState interface_state(std::string_view name) {
  const Entries list = list_interfaces();
  InterfaceState state;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (name != entry->ifa_name) continue;
    state.running = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
    state.has_address |= has_address(*entry);
  }
  return state;
}

bool passes_filter(std::string_view name, std::string_view filter) {
  const bool excluding = filter.starts_with('^');
  if (excluding) filter.remove_prefix(1);
  const bool exact = filter.starts_with('=');
  if (exact) filter.remove_prefix(1);
  bool any = false;
  bool listed = false;
  while (!filter.empty()) {
    const std::size_t comma = std::min(filter.find(','), filter.size());
    const std::string_view entry = filter.substr(0, comma);
    filter.remove_prefix(std::min(comma + 1, filter.size()));
    if (entry.empty()) continue;
    any = true;
    listed |= exact ? name == entry : name.starts_with(entry);
  }
  return !any || listed != excluding;
}

bool is_last_choice(const InterfaceAddress& candidate) {
  if (candidate.loopback) return true;
  // Docker calls the bridge of a network of its own "br-" and twelve hexadecimal digits.
  constexpr std::string_view kOwnBridge = "br-";
  constexpr std::size_t kOwnBridgeDigits = 12;
  const std::string_view name = candidate.name;
  if (name.starts_with(kOwnBridge) && name.size() == kOwnBridge.size() + kOwnBridgeDigits &&
      name.find_first_not_of("0123456789abcdef", kOwnBridge.size()) == std::string_view::npos) {
    return true;
  }
  constexpr std::array<std::string_view, 6> kBridges = {"docker", "virbr", "cni",
                                                        "podman", "lxcbr", "lxdbr"};
  return std::ranges::any_of(kBridges,
                             [&](std::string_view prefix) { return name.starts_with(prefix); });
}

int preference(const InterfaceAddress& candidate) {
  const int interface = candidate.loopback ? 100 : is_last_choice(candidate) ? 50 : 0;
  if (candidate.address.link_local()) return interface + 10;
  return interface + (candidate.address.family() == AF_INET6 ? 1 : 0);
}

std::vector<InterfaceAddress> choose_interfaces(const std::vector<InterfaceAddress>& all,
                                                std::string_view filter) {
  std::vector<InterfaceAddress> chosen;
  for (const InterfaceAddress& candidate : all) {
    if (passes_filter(candidate.name, filter)) chosen.push_back(candidate);
  }
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const auto& a, const auto& b) { return preference(a) < preference(b); });
  return chosen;
}

std::vector<InterfaceAddress> one_of_each(const std::vector<InterfaceAddress>& all,
                                          std::string_view filter) {
  std::vector<InterfaceAddress> best;
  for (const InterfaceAddress& candidate : all) {
    if (!passes_filter(candidate.name, filter)) continue;
    const auto same = std::find_if(best.begin(), best.end(), [&](const InterfaceAddress& other) {
      return other.name == candidate.name;
    });
    if (same == best.end()) {
      best.push_back(candidate);
    } else if (preference(candidate) < preference(*same)) {
      *same = candidate;
    }
  }
  if (filter.empty() && !std::all_of(best.begin(), best.end(), is_last_choice)) {
    std::erase_if(best, is_last_choice);
  }
  return best;
}

void throw_no_interface(const std::vector<InterfaceAddress>& all, std::string_view filter) {
  std::set<std::string> names;
  for (const InterfaceAddress& entry : all) names.insert(entry.name);
  std::string text;
  for (const std::string& name : names) text += " " + name;
  if (text.empty()) text = " none";
  if (filter.empty()) {
    throw Error(Errc::kSystem, "getifaddrs: no network interface is up with an address");
  }
  throw Error(
      Errc::kInvalidArgument,
      "ROPEWALK_SOCKET_IFNAME \"{}\": no network interface that is up matches; there are:{}",
      filter, text);
}

InterfaceAddress best_interface(std::string_view filter) {
  const std::vector<InterfaceAddress> all = interface_addresses();
  const std::vector<InterfaceAddress> chosen = choose_interfaces(all, filter);
  if (chosen.empty()) throw_no_interface(all, filter);
  return chosen.front();
}

}  // namespace ropewalk
