#include "topology/replicate.h"

#include <vector>

#include "core/error.h"

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

}  // namespace

Topology replicate(const Topology& host, int hosts, Fabric fabric) {
  check(host, hosts);
  const std::vector<Topology> copies(static_cast<std::size_t>(hosts), host);
  return merge(copies, fabric);
}

}  // namespace ropewalk::topology
