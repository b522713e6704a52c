#include "core/socket_address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "core/error.h"

namespace ropewalk {
namespace {

sockaddr_in& v4(sockaddr_storage& storage) { return reinterpret_cast<sockaddr_in&>(storage); }
sockaddr_in6& v6(sockaddr_storage& storage) { return reinterpret_cast<sockaddr_in6&>(storage); }
const sockaddr_in& v4(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in&>(storage);
}
const sockaddr_in6& v6(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in6&>(storage);
}

}  // namespace

SocketAddress SocketAddress::of(int family, const HostBytes& host, std::uint16_t port,
                                std::uint32_t scope) {
  SocketAddress address;
  address.storage.ss_family = static_cast<sa_family_t>(family);
  if (family == AF_INET6) {
    std::memcpy(&v6(address.storage).sin6_addr, host.data(), sizeof(in6_addr));
  } else {
    std::memcpy(&v4(address.storage).sin_addr, host.data(), sizeof(in_addr));
  }
  address.set_port(port);
  address.set_scope(scope);
  return address;
}

socklen_t SocketAddress::length() const noexcept {
  return family() == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

SocketAddress::HostBytes SocketAddress::host_bytes() const noexcept {
  HostBytes bytes{};
  if (family() == AF_INET6) {
    std::memcpy(bytes.data(), &v6(storage).sin6_addr, sizeof(in6_addr));
  } else {
    std::memcpy(bytes.data(), &v4(storage).sin_addr, sizeof(in_addr));
  }
  return bytes;
}

std::uint16_t SocketAddress::port() const noexcept {
  return ntohs(family() == AF_INET6 ? v6(storage).sin6_port : v4(storage).sin_port);
}

void SocketAddress::set_port(std::uint16_t port) noexcept {
  if (family() == AF_INET6) {
    v6(storage).sin6_port = htons(port);
  } else {
    v4(storage).sin_port = htons(port);
  }
}

std::uint32_t SocketAddress::scope() const noexcept {
  return family() == AF_INET6 ? v6(storage).sin6_scope_id : 0;
}

void SocketAddress::set_scope(std::uint32_t scope) noexcept {
  if (family() == AF_INET6) v6(storage).sin6_scope_id = scope;
}

bool SocketAddress::link_local() const noexcept {
  return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6(storage).sin6_addr);
}

bool SocketAddress::same_host(const SocketAddress& other) const noexcept {
  return family() == other.family() && host_bytes() == other.host_bytes() &&
         scope() == other.scope();
}

std::string SocketAddress::text() const {
  std::array<char, INET6_ADDRSTRLEN> buffer{};
  if (family() == AF_INET) {
    inet_ntop(AF_INET, &v4(storage).sin_addr, buffer.data(), buffer.size());
    return fmt::format("{}:{}", buffer.data(), port());
  }
  if (family() != AF_INET6) return "no address";
  inet_ntop(AF_INET6, &v6(storage).sin6_addr, buffer.data(), buffer.size());
  if (scope() == 0) return fmt::format("[{}]:{}", buffer.data(), port());
  std::array<char, IF_NAMESIZE> zone{};
  if (if_indextoname(scope(), zone.data()) != nullptr) {
    return fmt::format("[{}%{}]:{}", buffer.data(), zone.data(), port());
  }
  return fmt::format("[{}%{}]:{}", buffer.data(), scope(), port());
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
    throw Error(Errc::kInvalidArgument, "\"{}\": the port is not one of 1 to 65535", host_and_port);
  }
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int rc = getaddrinfo(host.c_str(), port.c_str(), &hints, &list); rc != 0) {
    throw Error(Errc::kSystem, "getaddrinfo of \"{}\": {}", host_and_port, gai_strerror(rc));
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
    throw Error(Errc::kSystem, "getaddrinfo of \"{}\": no IPv4 or IPv6 address", host_and_port);
  }
  return result;
}

namespace {

SocketAddress address_by(int (*call)(int, sockaddr*, socklen_t*), const char* name, int socket) {
  SocketAddress address;
  socklen_t length = sizeof address.storage;
  if (call(socket, reinterpret_cast<sockaddr*>(&address.storage), &length) != 0) {
    throw system_error(errno, name);
  }
  return address;
}

}  // namespace

SocketAddress local_address(int socket) { return address_by(getsockname, "getsockname", socket); }

SocketAddress peer_address(int socket) { return address_by(getpeername, "getpeername", socket); }

}  // namespace ropewalk
