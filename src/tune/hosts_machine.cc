#include "tune/hosts_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace ropewalk::tune {
namespace {

using topology::LinkType;
using topology::NodeIndex;
using topology::NodeKind;

constexpr double kMemoryGbps = 10;
constexpr double kNetworkGbps = 1;
constexpr double kMemoryLatencyUs = 0.2;
constexpr double kNetworkLatencyUs = 10;

}  // namespace

topology::Topology hosts_machine(std::span<const int> host_of_rank) {
  topology::Description machine;
  machine.name = "hosts";
  machine.title = "the hosts of a group, by its ranks";
  machine.hosts = 1 + *std::ranges::max_element(host_of_rank);
  const auto add = [&](topology::Node node) {
    machine.nodes.push_back(std::move(node));
    return machine.nodes.size() - 1;
  };
  const auto join = [&](NodeIndex a, NodeIndex b, LinkType type, double gbps, double latency_us) {
    for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
      machine.links.push_back({.source = from,
                               .destination = to,
                               .type = type,
                               .capacity = gbps,
                               .latency_us = latency_us,
                               .assumed = true});
    }
  };
  const NodeIndex network = add({.id = "network", .kind = NodeKind::kNetwork, .host = -1});
  std::vector<NodeIndex> memory;
  for (int host = 0; host < machine.hosts; ++host) {
    memory.push_back(add(
        {.id = fmt::format("h{}.memory", host), .kind = NodeKind::kCpu, .host = host, .numa = 0}));
    const NodeIndex nic =
        add({.id = fmt::format("h{}.nic", host), .kind = NodeKind::kNic, .host = host});
    join(memory.back(), nic, LinkType::kPcie, kMemoryGbps, 0);
    join(nic, network, LinkType::kNet, kNetworkGbps, kNetworkLatencyUs);
  }
  for (std::size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    const int host = host_of_rank[rank];
    const NodeIndex node = add({.id = fmt::format("h{}.rank{}", host, rank),
                                .kind = NodeKind::kGpu,
                                .host = host,
                                .rank = static_cast<int>(rank)});
    join(node, memory[static_cast<std::size_t>(host)], LinkType::kPcie, kMemoryGbps,
         kMemoryLatencyUs);
  }
  return topology::Topology(std::move(machine));
}

}  // namespace ropewalk::tune
