#include "topology/distance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "topology/building.h"

namespace ropewalk::topology {
namespace {

constexpr NodeIndex kNobody = static_cast<NodeIndex>(-1);

bool is_local(LinkType type) {
  return type == LinkType::kPcie || type == LinkType::kSmp || type == LinkType::kC2c;
}

bool is_fabric(LinkType type) { return type == LinkType::kNvlink || type == LinkType::kXgmi; }

/// A switch that is one card with several ports counts as part of the card.
bool is_bridge(const Node& node) {
  if (node.kind != NodeKind::kPcieSwitch) return false;
  const std::string* pci_class = find_attribute(node.attributes, "class");
  return pci_class == nullptr || !pci_class->starts_with("0x02");
}

int lanes_of(const Topology& topology, const Link& link) {
  if (link.lanes) return *link.lanes;
  const double lane =
      topology.description().lane_gbps.value_or(link.type == LinkType::kXgmi ? 50 : 25);
  return std::max(1, static_cast<int>(std::lround(link.capacity / lane)));
}

/// Numbers the groups of nodes that the links which `counts` accepts hold together.
template <typename Counts>
std::vector<std::size_t> components(const Topology& topology, Counts&& counts) {
  std::vector<std::size_t> group(topology.nodes().size(), 0);
  std::size_t groups = 0;
  for (NodeIndex start = 0; start < group.size(); ++start) {
    if (group[start] != 0) continue;
    group[start] = ++groups;
    std::vector<NodeIndex> open{start};
    while (!open.empty()) {
      const NodeIndex at = open.back();
      open.pop_back();
      const auto visit = [&](const Link& link, NodeIndex to) {
        if (group[to] != 0 || !counts(link)) return;
        group[to] = groups;
        open.push_back(to);
      };
      for (const LinkIndex l : topology.links_from(at)) {
        visit(topology.link(l), topology.link(l).destination);
      }
      for (const LinkIndex l : topology.links_to(at)) {
        visit(topology.link(l), topology.link(l).source);
      }
    }
  }
  return group;
}

PathClass classify(const Topology& topology, const std::vector<NodeIndex>& nodes) {
  int bridges = 0;
  int cpus = 0;
  PathClass within_cpu = PathClass::kPhb;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = topology.node(nodes[i]);
    bridges += is_bridge(node);
    if (node.kind != NodeKind::kCpu) continue;
    ++cpus;
    if (i == 0 || i + 1 == nodes.size()) continue;
    const std::string* before =
        find_attribute(topology.node(nodes[i - 1]).attributes, "host_bridge");
    const std::string* after =
        find_attribute(topology.node(nodes[i + 1]).attributes, "host_bridge");
    if (before != nullptr && after != nullptr && *before != *after) within_cpu = PathClass::kNode;
  }
  if (cpus > 1) return PathClass::kSys;
  if (cpus == 1) return within_cpu;
  return bridges > 1 ? PathClass::kPxb : PathClass::kPix;
}

}  // namespace

std::string_view name(PathClass path) noexcept {
  switch (path) {
    case PathClass::kSelf: return "X";
    case PathClass::kFabric: return "NV";
    case PathClass::kPix: return "PIX";
    case PathClass::kPxb: return "PXB";
    case PathClass::kPhb: return "PHB";
    case PathClass::kNode: return "NODE";
    case PathClass::kSys: return "SYS";
    case PathClass::kNet: return "NET";
    case PathClass::kNone: return "-";
  }
  return "-";
}

std::string Path::text() const {
  if (path != PathClass::kFabric) return std::string(name(path));
  return fmt::format("{}{}", fabric == LinkType::kXgmi ? "XG" : "NV", lanes);
}

Distances::Distances(const Topology& topology)
    : host_(topology.nodes().size()), position_(topology.nodes().size()) {
  std::vector<std::size_t> count(static_cast<std::size_t>(topology.hosts()) + 1, 0);
  for (NodeIndex i = 0; i < host_.size(); ++i) {
    host_[i] = topology.node(i).host;
    position_[i] = count[static_cast<std::size_t>(host_[i] + 1)]++;
  }
  std::size_t pairs = 0;
  for (const std::size_t size : count) pairs += size * size;
  if (pairs > kMaxPairs) {
    throw Error(Errc::kInvalidArgument, "{}: {} nodes of one host are too many for distances",
                topology.name(), *std::max_element(count.begin(), count.end()));
  }
  std::vector<std::vector<NodeIndex>> cpus(count.size());
  for (const NodeIndex cpu : topology.nodes_of(NodeKind::kCpu)) {
    cpus[static_cast<std::size_t>(host_[cpu] + 1)].push_back(cpu);
  }
  component_ = components(topology, [](const Link&) { return true; });
  rows_.resize(host_.size());
  for (NodeIndex i = 0; i < host_.size(); ++i) {
    const auto host = static_cast<std::size_t>(host_[i] + 1);
    rows_[i].to = walk(topology, i, count[host]);
    if (topology.node(i).kind == NodeKind::kCpu) {
      rows_[i].cpu = i;
      continue;
    }
    int best = 0;
    for (const NodeIndex cpu : cpus[host]) {
      const int hops = rows_[i].to[position_[cpu]].hops;
      if (hops > 0 && (best == 0 || hops < best)) {
        best = hops;
        rows_[i].cpu = cpu;
      }
    }
  }
  find_fabric(topology);
}

/// Breadth first over PCIe and links between CPUs of one host, through switches and CPUs only.
std::vector<Path> Distances::walk(const Topology& topology, NodeIndex from,
                                  std::size_t host_size) const {
  std::vector<NodeIndex> before(host_size, kNobody);  // by index within the host
  std::vector<NodeIndex> open{from};
  before[position_[from]] = from;
  for (std::size_t next = 0; next < open.size(); ++next) {
    const NodeIndex at = open[next];
    const NodeKind kind = topology.node(at).kind;
    if (at != from && kind != NodeKind::kPcieSwitch && kind != NodeKind::kCpu) continue;
    for (const LinkIndex l : topology.links_from(at)) {
      const Link& link = topology.link(l);
      const NodeIndex to = link.destination;
      if (!is_local(link.type) || host_[to] != host_[from] || before[position_[to]] != kNobody) {
        continue;
      }
      before[position_[to]] = at;
      open.push_back(to);
    }
  }
  std::vector<Path> found(host_size);
  for (const NodeIndex to : open) {
    if (to == from) {
      found[position_[to]].path = PathClass::kSelf;
      continue;
    }
    std::vector<NodeIndex> nodes;
    for (NodeIndex at = to; at != from; at = before[position_[at]]) nodes.push_back(at);
    nodes.push_back(from);
    Path& path = found[position_[to]];
    path.path = classify(topology, nodes);
    path.hops = static_cast<int>(nodes.size()) - 1;
  }
  return found;
}

void Distances::find_fabric(const Topology& topology) {
  const std::size_t count = topology.nodes().size();
  direct_.resize(count);
  crossbar_.assign(count, 0);
  switch_lanes_.assign(count, 0);
  switch_type_.assign(count, LinkType::kNvlink);
  const auto is = [&](NodeIndex node, NodeKind kind) { return topology.node(node).kind == kind; };
  for (const NodeIndex gpu : topology.gpus()) {
    for (const LinkIndex l : topology.links_from(gpu)) {
      const Link& link = topology.link(l);
      if (!is_fabric(link.type)) continue;
      if (is(link.destination, NodeKind::kGpu)) {
        direct_[gpu].push_back({link.destination, lanes_of(topology, link), link.type});
      } else if (is(link.destination, NodeKind::kNvSwitch)) {
        switch_lanes_[gpu] += lanes_of(topology, link);
        switch_type_[gpu] = link.type;
      }
    }
  }
  // GPUs with a switch chip in common, or with chips that are joined, form one crossbar.
  const std::vector<std::size_t> fabric = components(topology, [&](const Link& link) {
    return is_fabric(link.type) &&
           (is(link.source, NodeKind::kNvSwitch) || is(link.destination, NodeKind::kNvSwitch));
  });
  for (const NodeIndex gpu : topology.gpus()) {
    if (switch_lanes_[gpu] > 0) crossbar_[gpu] = fabric[gpu];
  }
}

Path Distances::over_pcie(NodeIndex from, NodeIndex to) const {
  if (host_[from] == host_[to]) {
    const Path& path = rows_[from].to[position_[to]];
    if (path.path != PathClass::kNone) return path;
  }
  Path path;
  if (component_[from] == component_[to]) path.path = PathClass::kNet;
  if (host_[from] == host_[to] && path.path == PathClass::kNet) path.path = PathClass::kNone;
  return path;
}

Path Distances::between(NodeIndex from, NodeIndex to) const {
  if (from == to) return {.path = PathClass::kSelf};
  Path best;
  for (const Direct& each : direct_[from]) {
    if (each.to != to) continue;
    best.path = PathClass::kFabric;
    best.fabric = each.type;
    best.lanes += each.lanes;
    best.hops = 1;
  }
  if (best.lanes == 0 && crossbar_[from] != 0 && crossbar_[from] == crossbar_[to]) {
    best = {PathClass::kFabric, std::min(switch_lanes_[from], switch_lanes_[to]),
            switch_type_[from], 2};
  }
  return best.path == PathClass::kFabric ? best : over_pcie(from, to);
}

std::optional<NodeIndex> Distances::nearest_cpu(NodeIndex device) const {
  return rows_[device].cpu;
}

DistanceMatrix distance_matrix(const Topology& topology, const Distances& distances, int host) {
  DistanceMatrix matrix;
  const auto add = [&](NodeIndex node, std::string label) {
    if (host >= 0 && topology.node(node).host != host) return;
    DistanceMatrix::Device device{node, std::move(label), "", topology.node(node).numa};
    if (const std::optional<NodeIndex> cpu = distances.nearest_cpu(node)) {
      device.cpus = topology.node(*cpu).cpus;
      device.numa = topology.node(*cpu).numa;
    }
    matrix.devices.push_back(std::move(device));
  };
  for (std::size_t rank = 0; rank < topology.gpus().size(); ++rank) {
    add(topology.gpus()[rank], fmt::format("GPU{}", rank));
  }
  const std::vector<NodeIndex> nics = topology.nodes_of(NodeKind::kNic);
  for (std::size_t i = 0; i < nics.size(); ++i) add(nics[i], fmt::format("NIC{}", i));
  if (matrix.devices.size() > kMaxMatrixDevices) {
    throw Error(Errc::kInvalidArgument, "{}: a matrix of {} devices; {} is the limit",
                topology.name(), matrix.devices.size(), kMaxMatrixDevices);
  }
  for (const auto& from : matrix.devices) {
    std::vector<std::string>& row = matrix.cells.emplace_back();
    for (const auto& to : matrix.devices) {
      row.push_back(distances.between(from.node, to.node).text());
    }
  }
  return matrix;
}

}  // namespace ropewalk::topology
