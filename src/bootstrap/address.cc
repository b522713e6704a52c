#include "bootstrap/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>

#include "core/error.h"

namespace ropewalk::bootstrap {
namespace {

const sockaddr_in& v4(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in&>(storage);
}
const sockaddr_in6& v6(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in6&>(storage);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = text.find(separator);
    if (end != 0) parts.push_back(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return parts;
}

bool link_local(const SocketAddress& address) {
  return address.storage.ss_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&v6(address.storage).sin6_addr);
}

// Smaller is better.
int preference(const InterfaceAddress& candidate) {
  int score = 0;
  if (candidate.loopback) {
    score += 100;
  } else if (candidate.name.starts_with("docker") || candidate.name.starts_with("virbr")) {
    score += 50;
  }
  if (link_local(candidate.address)) {
    score += 10;
  } else if (candidate.address.storage.ss_family == AF_INET6) {
    score += 1;
  }
  return score;
}

}  // namespace

socklen_t SocketAddress::length() const noexcept {
  return storage.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

std::uint16_t SocketAddress::port() const noexcept {
  return ntohs(storage.ss_family == AF_INET6 ? v6(storage).sin6_port : v4(storage).sin_port);
}

void SocketAddress::set_port(std::uint16_t port) noexcept {
  if (storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
  }
}

std::string SocketAddress::text() const {
  std::array<char, INET6_ADDRSTRLEN> buffer{};
  if (storage.ss_family == AF_INET) {
    inet_ntop(AF_INET, &v4(storage).sin_addr, buffer.data(), buffer.size());
    return fmt::format("{}:{}", buffer.data(), port());
  }
  if (storage.ss_family == AF_INET6) {
    inet_ntop(AF_INET6, &v6(storage).sin6_addr, buffer.data(), buffer.size());
    const std::uint32_t scope = v6(storage).sin6_scope_id;
    return scope == 0 ? fmt::format("[{}]:{}", buffer.data(), port())
                      : fmt::format("[{}%{}]:{}", buffer.data(), scope, port());
  }
  return "no address";
}

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) throw system_error(errno, "getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<InterfaceAddress> result;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    InterfaceAddress found;
    found.name = entry->ifa_name;
    found.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    std::memcpy(&found.address.storage, entry->ifa_addr,
                family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
    found.address.set_port(0);
    result.push_back(std::move(found));
  }
  return result;
}

std::vector<InterfaceAddress> choose_interfaces(const std::vector<InterfaceAddress>& all,
                                                std::string_view pattern) {
  const bool exclude = pattern.starts_with('^');
  if (exclude) pattern.remove_prefix(1);
  const bool exact = pattern.starts_with('=');
  if (exact) pattern.remove_prefix(1);
  const std::vector<std::string_view> words = split(pattern, ',');

  std::vector<InterfaceAddress> chosen;
  for (const InterfaceAddress& candidate : all) {
    const bool listed = std::any_of(words.begin(), words.end(), [&](std::string_view word) {
      return exact ? candidate.name == word : candidate.name.starts_with(word);
    });
    if (words.empty() || listed != exclude) chosen.push_back(candidate);
  }
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const auto& a, const auto& b) { return preference(a) < preference(b); });
  return chosen;
}

std::vector<SocketAddress> resolve(std::string_view host_and_port) {
  const std::size_t colon = host_and_port.rfind(':');
  std::string host(host_and_port.substr(0, colon));
  if (colon == std::string_view::npos || host.empty() || colon + 1 == host_and_port.size()) {
    throw Error(Errc::kInvalidArgument, "\"{}\" is not HOST:PORT", host_and_port);
  }
  const std::string port(host_and_port.substr(colon + 1));
  if (port.find_first_not_of("0123456789") != std::string::npos || port.size() > 5 ||
      std::stoi(port) > 65535 || std::stoi(port) == 0) {
    throw Error(Errc::kInvalidArgument, "\"{}\": the port is none of 1 to 65535", host_and_port);
  }
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int rc = getaddrinfo(host.c_str(), port.c_str(), &hints, &list); rc != 0) {
    throw Error(Errc::kSystem, "resolving \"{}\": {}", host_and_port, gai_strerror(rc));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, freeaddrinfo);
  std::vector<SocketAddress> result;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    SocketAddress address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    result.push_back(address);
  }
  if (result.empty()) {
    throw Error(Errc::kSystem, "resolving \"{}\": no IPv4 or IPv6 address", host_and_port);
  }
  return result;
}

}  // namespace ropewalk::bootstrap
