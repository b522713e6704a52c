#include "topology/replicate.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "topology/building.h"

namespace ropewalk::topology {
namespace {

void check(const Topology& host, int hosts) {
  if (host.hosts() != 1) {
    throw Error(Errc::kInvalidArgument, "{} has {} hosts; copies are made of one", host.name(),
                host.hosts());
  }
  if (hosts < 1 || static_cast<std::size_t>(hosts) > kMaxNodes ||
      host.nodes().size() * static_cast<std::size_t>(hosts) > kMaxNodes) {
    throw Error(Errc::kInvalidArgument, "{} hosts of {} nodes: {} nodes is the limit", hosts,
                host.nodes().size(), kMaxNodes);
  }
  if (!host.nodes_of(NodeKind::kNetwork).empty()) {
    throw Error(Errc::kInvalidArgument, "{} has a network already", host.name());
  }
  const std::vector<NodeIndex> nics = host.nodes_of(NodeKind::kNic);
  if (hosts > 1 && nics.empty()) {
    throw Error(Errc::kInvalidArgument, "{} has no NIC to join hosts by", host.name());
  }
  for (const NodeIndex nic : nics) {
    if (!host.node(nic).net_gbps) {
      throw Error(Errc::kInvalidArgument, "{}: NIC {} has no line rate (net_gbps)", host.name(),
                  host.node(nic).id);
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

}  // namespace

Topology replicate(const Topology& host, int hosts, Fabric fabric) {
  check(host, hosts);
  const std::vector<NodeIndex> nics = host.nodes_of(NodeKind::kNic);
  Description made = host.description();
  made.hosts = hosts;
  made.nodes.clear();
  made.links.clear();
  if (hosts > 1) {
    made.name += fmt::format("-x{}", hosts);
    made.title = fmt::format("{} hosts: {}", hosts, host.description().title);
  }
  if (!nics.empty()) {
    made.assumptions.push_back(
        fabric == Fabric::kRails
            ? "a network for each NIC place; NICs reach it at their line rate"
            : "one network without contention; NICs reach it at their line rate");
    const std::size_t networks = fabric == Fabric::kRails ? nics.size() : 1;
    for (std::size_t i = 0; i < networks; ++i) {
      made.nodes.push_back({.id = fmt::format("net{}", i), .kind = NodeKind::kNetwork, .host = -1});
    }
  }
  const std::size_t networks = made.nodes.size();
  for (int h = 0; h < hosts; ++h) {
    const NodeIndex first = made.nodes.size();
    for (Node node : host.nodes()) {
      node.host = h;
      if (hosts > 1) node.id = fmt::format("h{}.{}", h, node.id);
      if (node.rank >= 0) node.rank += h * static_cast<int>(host.gpus().size());
      made.nodes.push_back(std::move(node));
    }
    for (Link link : host.links()) {
      link.source += first;
      link.destination += first;
      made.links.push_back(std::move(link));
    }
    for (std::size_t i = 0; i < nics.size() && networks > 0; ++i) {
      Link there{.source = first + nics[i],
                 .destination = fabric == Fabric::kRails ? i : 0,
                 .type = LinkType::kNet,
                 .capacity = *host.node(nics[i]).net_gbps};
      Link back = there;
      std::swap(back.source, back.destination);
      made.links.push_back(there);
      made.links.push_back(back);
    }
  }
  if (networks > 0) made.planes = planes_with_network(made);
  return Topology(std::move(made));
}

}  // namespace ropewalk::topology
