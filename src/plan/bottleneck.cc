#include "plan/bottleneck.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/index.h"

namespace ropewalk::plan {

namespace {

using topology::LinkType;
using topology::NodeKind;

std::string_view spoken(LinkType type) {
  switch (type) {
    case LinkType::kNvlink: return "NVLink";
    case LinkType::kXgmi: return "xGMI";
    case LinkType::kC2c: return "chip-to-chip";
    case LinkType::kPcie: return "PCIe";
    case LinkType::kSmp: return "socket";
    case LinkType::kNet: return "network";
    case LinkType::kNtb: return "NTB";
    case LinkType::kEthernet: return "Ethernet";
  }
  return "";
}

std::string spoken(const topology::Topology& topology, const topology::Node& node) {
  if (node.kind != NodeKind::kCpu) {
    return node.id;
  }
  // A NUMA node is known by its number; with several hosts the host must be said.
  const std::string socket = node.numa.has_value() ? fmt::format("socket {}", *node.numa) : node.id;
  return topology.hosts() > 1 ? fmt::format("{} of host {}", socket, node.host) : socket;
}

/// How near to the CPU's memory a node is: links towards larger numbers are uplinks.
int height(NodeKind kind) {
  switch (kind) {
    case NodeKind::kGpu:
    case NodeKind::kNic: return 0;
    case NodeKind::kPcieSwitch: return 1;
    case NodeKind::kCpu: return 2;
    case NodeKind::kNvSwitch: return 1;
    case NodeKind::kNetwork: return 3;
  }
  return 0;
}

std::string list(const std::vector<std::string>& names) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    out += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  }
  return out;
}

/// "gpu0, gpu1 and gpu2", or "7 of the 16 GPUs" when there are many.
std::string name_ranks(const topology::Topology& topology, const std::vector<int>& nodes,
                       std::size_t all) {
  if (nodes.size() > 4) {
    return fmt::format("{} of the {} GPUs", nodes.size(), all);
  }
  std::vector<std::string> names;
  for (const int node : nodes) {
    names.push_back(topology.node(at(node)).id);
  }
  return list(names);
}

/// Links of one kind that share an end, or none.
struct Group {
  LinkType type{};
  std::string direction;  // "uplink", "downlink", "link"
  std::vector<int> links;
};

std::string name_group(const topology::Topology& topology, const Group& group) {
  std::set<topology::NodeIndex> sources;
  std::set<topology::NodeIndex> destinations;
  std::set<NodeKind> lower_kinds;
  for (const int index : group.links) {
    const topology::Link& link = topology.link(at(index));
    sources.insert(link.source);
    destinations.insert(link.destination);
    lower_kinds.insert(topology
                           .node(height(topology.node(link.source).kind) <=
                                         height(topology.node(link.destination).kind)
                                     ? link.source
                                     : link.destination)
                           .kind);
  }
  const bool many = group.links.size() > 1;
  const std::string what =
      fmt::format("{}{} {}{}", many ? fmt::format("{} ", group.links.size()) : "",
                  spoken(group.type), group.direction, many ? "s" : "");
  const auto one = [&](const std::set<topology::NodeIndex>& nodes) {
    return spoken(topology, topology.node(*nodes.begin()));
  };
  // Uplinks are named after the end they lead to when they share it ("of socket 0"), else after the
  // device that they leave.
  if (group.direction == "uplink" || group.direction == "downlink") {
    const auto& upper = group.direction == "uplink" ? destinations : sources;
    const auto& lower = group.direction == "uplink" ? sources : destinations;
    if (many && upper.size() == 1) {
      return fmt::format("the {} of {}", what, one(upper));
    }
    if (lower.size() == 1) {
      return fmt::format("the {} of {}", what, one(lower));
    }
    if (lower_kinds.size() == 1 && *lower_kinds.begin() == NodeKind::kNic) {
      return fmt::format("the {} of {} NICs", what, lower.size());
    }
    return fmt::format("the {}", what);
  }
  if (destinations.size() == 1 && sources.size() == 1) {
    return fmt::format("the {} from {} to {}", what, one(sources), one(destinations));
  }
  if (destinations.size() == 1) {
    return fmt::format("the {} into {}", what, one(destinations));
  }
  if (sources.size() == 1) {
    return fmt::format("the {} out of {}", what, one(sources));
  }
  return fmt::format("the {}", what);
}

}  // namespace

std::string name_links(const topology::Topology& topology, const std::vector<int>& links) {
  std::vector<Group> groups;
  for (const int index : links) {
    const topology::Link& link = topology.link(at(index));
    const int rise =
        height(topology.node(link.destination).kind) - height(topology.node(link.source).kind);
    const std::string direction = link.type == LinkType::kSmp || link.type == LinkType::kNtb ||
                                          link.type == LinkType::kXgmi ||
                                          link.type == LinkType::kNvlink || rise == 0
                                      ? "link"
                                  : rise > 0 ? "uplink"
                                             : "downlink";
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
      return group.type == link.type && group.direction == direction;
    });
    if (same == groups.end()) {
      groups.push_back({link.type, direction, {index}});
    } else {
      same->links.push_back(index);
    }
  }
  std::vector<std::string> names;
  for (const Group& group : groups) {
    names.push_back(name_group(topology, group));
  }
  return list(names);
}

Bottleneck describe_cut(const topology::Topology& topology, const Network& network, const Cut& cut,
                        bool backwards) {
  Bottleneck out;
  out.capacity = Fraction(cut.capacity) * network.unit;
  out.ranks_inside = cut.ranks_inside;
  for (int node = 0; node < network.num_nodes; ++node) {
    if (cut.inside[at(node)]) {
      out.inside_nodes.push_back(node);
    }
  }
  for (const Arc& arc : network.arcs) {
    if (cut.inside[at(arc.from)] && !cut.inside[at(arc.to)]) {
      out.links.push_back(arc.link);
    }
  }
  std::vector<int> inside;
  std::vector<int> outside;
  for (const int node : network.ranks) {
    (cut.inside[at(node)] ? inside : outside).push_back(node);
  }
  const bool one = out.links.size() == 1;
  const std::string from = name_ranks(topology, inside, network.ranks.size());
  const std::string to = name_ranks(topology, outside, network.ranks.size());
  out.words = fmt::format("{} limit{} this: all that goes from {} to {} passes {} ({:.6g} GB/s)",
                          name_links(topology, out.links), one ? "s" : "", backwards ? to : from,
                          backwards ? from : to, one ? "it" : "them", out.capacity.to_double());
  return out;
}

}  // namespace ropewalk::plan
