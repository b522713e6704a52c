// The physical links of the machine that a link's messages take.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "transport/transport.h"

namespace ropewalk::link {

/// Indices into Topology::links, from the sender on; empty: the machine's usual path between the
/// two ranks.
using Route = std::vector<int>;

/// A number that distinguishes the routes between two ranks: 0 for the usual path, else 1 to
/// kRouteNumbers - 1. Both ends compute it from the same route. Of two routes with one number, a
/// link takes the first one requested: data is right, but is paced as if all of it took that route.
inline constexpr std::uint32_t kRouteNumbers = 1U << 13U;
[[nodiscard]] inline std::uint32_t route_number(const Route& route) noexcept {
  if (route.empty()) return 0;
  std::uint32_t hash = 2166136261U;  // FNV-1a
  for (const int link : route) hash = (hash ^ static_cast<std::uint32_t>(link)) * 16777619U;
  return 1 + hash % (kRouteNumbers - 1);
}

/// The NICs through which a route leaves the sender's host and enters the receiver's, as nodes of
/// the machine; -1 where it passes none.
struct RouteNics {
  int exit = -1;
  int entry = -1;
};
using NicsOfRoute = std::function<RouteNics(const Route&)>;

/// Makes a connection of a channel to `peer` take the time of a route's physical links (an emulated
/// machine).
using Pacer = std::function<std::unique_ptr<transport::SendConnection>(
    std::unique_ptr<transport::SendConnection>, int channel, int peer, const Route& route)>;

}  // namespace ropewalk::link
