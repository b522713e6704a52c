#include "topology/merge.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "topology/building.h"

namespace ropewalk::topology {
namespace {

// A name of more hosts would be long: they are counted.
constexpr std::size_t kNamedHosts = 3;

void check(std::span<const Topology> hosts) {
  if (hosts.empty()) throw Error(Errc::kInvalidArgument, "no host to make a machine of");
  std::size_t nodes = 0;
  for (const Topology& host : hosts) {
    if (host.hosts() != 1) {
      throw Error(Errc::kInvalidArgument, "{} has {} hosts; machines are made of single ones",
                  host.name(), host.hosts());
    }
    if (!host.nodes_of(NodeKind::kNetwork).empty()) {
      throw Error(Errc::kInvalidArgument, "{} has a network already", host.name());
    }
    nodes += host.nodes().size();
  }
  if (nodes > kMaxNodes) {
    throw Error(Errc::kInvalidArgument, "{} hosts of {} nodes in all: {} nodes is the limit",
                hosts.size(), nodes, kMaxNodes);
  }
}

bool all_equal(std::span<const Topology> hosts) {
  return std::ranges::all_of(hosts, [&](const Topology& host) { return host == hosts.front(); });
}

// The texts of all hosts, in order, without repetitions.
void add_new(std::vector<std::string>& said, const std::vector<std::string>& more) {
  for (const std::string& text : more) {
    if (std::ranges::find(said, text) == said.end()) said.push_back(text);
  }
}

void add_planes(std::vector<Plane>& planes, const std::vector<Plane>& more) {
  for (const Plane& plane : more) {
    const auto known = std::ranges::find(planes, plane.name, &Plane::name);
    if (known == planes.end()) {
      planes.push_back(plane);
      continue;
    }
    for (const LinkType type : plane.types) {
      if (std::ranges::find(known->types, type) == known->types.end()) {
        known->types.push_back(type);
      }
    }
  }
}

/// The planes again, with the network in those that need it.
std::vector<Plane> planes_with_network(const Description& joined) {
  std::vector<Plane> planes = joined.planes;
  for (Plane& plane : planes) {
    if (plane.name == "all") plane.types.push_back(LinkType::kNet);
  }
  std::set<std::string> names;
  for (const Plane& plane : planes) names.insert(plane.name);
  for (Plane& plane : standard_planes(joined)) {
    if (!names.contains(plane.name)) planes.push_back(std::move(plane));
  }
  return planes;
}

void name_after(Description& made, std::span<const Topology> hosts) {
  const Description& first = hosts.front().description();
  made.name = first.name;
  made.title = first.title;
  if (hosts.size() == 1) return;
  if (all_equal(hosts)) {
    made.name += fmt::format("-x{}", hosts.size());
    made.title = fmt::format("{} hosts: {}", hosts.size(), first.title);
    return;
  }
  std::vector<std::string> names;
  for (const Topology& host : hosts.first(std::min(hosts.size(), kNamedHosts))) {
    names.push_back(host.name());
  }
  if (hosts.size() > kNamedHosts) names.push_back(fmt::format("{}", hosts.size() - kNamedHosts));
  made.name = fmt::format("{}", fmt::join(names, "+"));
  made.title = fmt::format("{} hosts", hosts.size());
}

// All that is said of a machine as a whole, but its planes' network.
Description said_by(std::span<const Topology> hosts) {
  Description made;
  name_after(made, hosts);
  made.hosts = static_cast<int>(hosts.size());
  made.lane_gbps = hosts.front().description().lane_gbps;
  for (const Topology& host : hosts) {
    const Description& said = host.description();
    if (said.lane_gbps != made.lane_gbps) made.lane_gbps.reset();
    add_planes(made.planes, said.planes);
    add_new(made.sources, said.sources);
    add_new(made.assumptions, said.assumptions);
  }
  return made;
}

// Appends host number `host`; `networks` lie at the front of the nodes.
void append(Description& made, const Topology& one, int host, int first_rank, Fabric fabric,
            std::size_t networks) {
  const NodeIndex first = made.nodes.size();
  for (Node node : one.nodes()) {
    node.host = host;
    if (made.hosts > 1) node.id = fmt::format("h{}.{}", host, node.id);
    if (node.rank >= 0) node.rank += first_rank;
    made.nodes.push_back(std::move(node));
  }
  for (Link link : one.links()) {
    link.source += first;
    link.destination += first;
    made.links.push_back(std::move(link));
  }
  const std::vector<NodeIndex> nics = one.nodes_of(NodeKind::kNic);
  if (nics.empty() && networks > 0) {
    made.assumptions.push_back(fmt::format("host {} has no NIC: no network reaches it", host));
  }
  for (std::size_t i = 0; i < nics.size(); ++i) {
    const std::optional<double> rate = one.node(nics[i]).net_gbps;
    Link there{.source = first + nics[i],
               .destination = fabric == Fabric::kRails ? i : 0,
               .type = LinkType::kNet,
               .capacity = rate.value_or(kUntoldLineRate)};
    if (!rate) {
      there.assumed = true;
      made.assumptions.push_back(fmt::format("the line rate of {} is not known: {} GB/s is assumed",
                                             made.nodes[there.source].id, kUntoldLineRate));
    }
    Link back = there;
    std::swap(back.source, back.destination);
    made.links.push_back(there);
    made.links.push_back(back);
  }
}

}  // namespace

Topology merge(std::span<const Topology> hosts, Fabric fabric) {
  check(hosts);
  Description made = said_by(hosts);
  std::size_t nics = 0;
  for (const Topology& host : hosts) {
    nics = std::max(nics, host.nodes_of(NodeKind::kNic).size());
  }
  const std::size_t networks = fabric == Fabric::kRails ? nics : std::min<std::size_t>(nics, 1);
  if (networks > 0) {
    made.assumptions.push_back(
        fabric == Fabric::kRails
            ? "a network for each NIC index; NICs reach it at their line rate"
            : "one network without contention; NICs reach it at their line rate");
  } else if (hosts.size() > 1) {
    made.assumptions.push_back("no host has a NIC: no network joins them");
  }
  for (std::size_t i = 0; i < networks; ++i) {
    made.nodes.push_back({.id = fmt::format("net{}", i), .kind = NodeKind::kNetwork, .host = -1});
  }
  int ranks = 0;
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    append(made, hosts[h], static_cast<int>(h), ranks, fabric, networks);
    ranks += static_cast<int>(hosts[h].gpus().size());
  }
  if (networks > 0) made.planes = planes_with_network(made);
  return Topology(std::move(made));
}

}  // namespace ropewalk::topology
