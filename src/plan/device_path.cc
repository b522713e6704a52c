#include "plan/device_path.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>

namespace ropewalk::plan {
namespace {

using topology::LinkIndex;
using topology::LinkType;
using topology::NodeIndex;
using topology::NodeKind;
using topology::PathClass;

constexpr int kCpu = 10;
constexpr int kSocketLink = 100;

bool is_fabric(LinkType type) { return type == LinkType::kNvlink || type == LinkType::kXgmi; }

/// The class that a path's links and inner nodes make.
PathClass class_of(const topology::Topology& topology, const std::vector<int>& links) {
  int bridges = 0;
  bool cpu = false;
  for (std::size_t i = 0; i < links.size(); ++i) {
    const topology::Link& link = topology.link(static_cast<std::size_t>(links[i]));
    if (link.type == LinkType::kSmp) return PathClass::kSys;
    if (i + 1 == links.size()) break;
    const NodeKind kind = topology.node(link.destination).kind;
    cpu = cpu || kind == NodeKind::kCpu;
    bridges += kind == NodeKind::kPcieSwitch ? 1 : 0;
  }
  if (cpu) return PathClass::kPhb;
  return bridges > 1 ? PathClass::kPxb : PathClass::kPix;
}

/// What entering a node by a link costs; nothing if paths may not enter there.
std::optional<int> price(const topology::Topology& topology, const topology::Link& link) {
  const int through = topology.node(link.destination).kind == NodeKind::kCpu ? kCpu : 0;
  switch (link.type) {
    case LinkType::kPcie:
    case LinkType::kC2c: return 1 + through;
    case LinkType::kSmp: return kSocketLink + through;
    default: return std::nullopt;
  }
}

}  // namespace

std::optional<DevicePath> nearest_over_pcie(const topology::Topology& topology, NodeIndex from,
                                            NodeIndex to) {
  if (from == to) return DevicePath{};
  // Least price first, then the wider narrowest link, then the node's index.
  using Open = std::tuple<int, double, NodeIndex>;
  std::priority_queue<Open, std::vector<Open>, std::greater<>> open;
  std::vector<bool> done(topology.nodes().size(), false);
  std::vector<std::pair<int, double>> best(topology.nodes().size(), {-1, 0});
  std::vector<LinkIndex> arrived_by(topology.nodes().size(), 0);
  open.emplace(0, -1e300, from);
  best[from] = {0, -1e300};
  while (!open.empty()) {
    const auto [distance, width, node] = open.top();
    open.pop();
    if (done[node]) continue;
    done[node] = true;
    if (node == to) break;
    const NodeKind kind = topology.node(node).kind;
    if (node != from && (kind == NodeKind::kGpu || kind == NodeKind::kNic)) continue;
    for (const LinkIndex index : topology.links_from(node)) {
      const topology::Link& link = topology.link(index);
      const std::optional<int> step = price(topology, link);
      if (!step.has_value() || done[link.destination]) continue;
      const std::pair<int, double> found{distance + *step, std::max(width, -link.capacity)};
      std::pair<int, double>& known = best[link.destination];
      if (known.first >= 0 && known <= found) continue;
      known = found;
      arrived_by[link.destination] = index;
      open.emplace(found.first, found.second, link.destination);
    }
  }
  if (!done[to]) return std::nullopt;
  DevicePath result;
  result.distance = best[to].first;
  for (NodeIndex at = to; at != from; at = topology.link(arrived_by[at]).source) {
    result.links.push_back(static_cast<int>(arrived_by[at]));
  }
  std::reverse(result.links.begin(), result.links.end());
  result.path_class = class_of(topology, result.links);
  return result;
}

std::optional<DevicePath> nearest_over_fabric(const topology::Topology& topology, NodeIndex from,
                                              NodeIndex to) {
  std::optional<DevicePath> found;
  double widest = 0;
  const auto consider = [&](double width, std::vector<int> links) {
    if (width <= widest) return;
    widest = width;
    found = DevicePath{0, PathClass::kFabric, std::move(links)};
  };
  for (const LinkIndex first : topology.links_from(from)) {
    const topology::Link& link = topology.link(first);
    if (is_fabric(link.type) && link.destination == to) {
      consider(link.capacity, {static_cast<int>(first)});
    }
  }
  if (found.has_value()) return found;
  for (const LinkIndex first : topology.links_from(from)) {
    const topology::Link& up = topology.link(first);
    if (!is_fabric(up.type) || topology.node(up.destination).kind != NodeKind::kNvSwitch) continue;
    for (const LinkIndex second : topology.links_from(up.destination)) {
      const topology::Link& down = topology.link(second);
      if (down.destination == to && is_fabric(down.type)) {
        consider(std::min(up.capacity, down.capacity),
                 {static_cast<int>(first), static_cast<int>(second)});
      }
    }
  }
  return found;
}

std::optional<DevicePath> nearest_between_gpus(const topology::Topology& topology, NodeIndex from,
                                               NodeIndex to) {
  std::optional<DevicePath> found = nearest_over_fabric(topology, from, to);
  return found.has_value() ? found : nearest_over_pcie(topology, from, to);
}

}  // namespace ropewalk::plan
