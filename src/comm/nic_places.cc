#include "comm/nic_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <limits>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "core/first_line.h"
#include "plan/device_path.h"
#include "topology/scan.h"

namespace ropewalk::comm {
namespace {

using topology::NodeIndex;

// Farther than any path.
constexpr std::int32_t kNoPath = 1'000'000;

std::string address_of(const transport::DeviceProperties& device) {
  return topology::normal_bus_id(std::filesystem::path(device.pci_path).filename().string());
}

int numa_of(const transport::DeviceProperties& device) {
  int numa = -1;
  if (device.pci_path.empty()) return numa;
  const std::string text = first_line(std::filesystem::path(device.pci_path) / "numa_node");
  std::from_chars(text.data(), text.data() + text.size(), numa);
  return numa;
}

// The least from a NUMA node to one whose processors are usable: the kernel's, less those of a node
// to itself. Where the kernel names none, 1 for all other nodes.
std::int32_t distance_from(const std::filesystem::path& nodes, int numa,
                           const tune::Processors& usable) {
  constexpr int kToItself = 10;
  const auto runs_at = [&](int node) {
    const auto cpus =
        tune::Processors::of_list(first_line(nodes / fmt::format("node{}", node) / "cpulist"));
    return cpus.in_common(usable) > 0;
  };
  if (runs_at(numa)) return 0;
  std::istringstream distances(first_line(nodes / fmt::format("node{}", numa) / "distance"));
  std::int32_t least = 0;
  int distance = 0;
  for (int node = 0; distances >> distance; ++node) {
    const std::int32_t further = std::max(1, distance - kToItself);
    if (node != numa && runs_at(node) && (least == 0 || further < least)) least = further;
  }
  return std::max(1, least);
}

}  // namespace

std::vector<link::NicPosition> place_nics(const Machine& machine, int rank,
                                          std::span<const transport::DeviceProperties> devices) {
  const topology::Topology& topology = *machine.planned;
  const NodeIndex gpu = topology.gpus()[static_cast<std::size_t>(rank)];
  std::vector<NodeIndex> nics;
  for (const NodeIndex node : topology.nodes_of(topology::NodeKind::kNic)) {
    if (topology.node(node).host == topology.node(gpu).host) nics.push_back(node);
  }
  std::vector<link::NicPosition> positions(devices.size());
  bool any = false;
  for (std::size_t d = 0; d < devices.size(); ++d) {
    const std::string address = devices[d].pci_path.empty() ? "" : address_of(devices[d]);
    const auto same = std::ranges::find_if(nics, [&](NodeIndex node) {
      const topology::Node& nic = topology.node(node);
      return (!nic.device.empty() && nic.device == devices[d].name) ||
             (!address.empty() && topology::normal_bus_id(nic.bus_id) == address);
    });
    if (same == nics.end()) continue;
    positions[d].node = static_cast<std::int32_t>(*same);
    any = true;
  }
  for (std::size_t d = 0; d < devices.size(); ++d) {
    if (!any && nics.size() == devices.size()) {
      positions[d].node = static_cast<std::int32_t>(nics[d]);
    }
    if (positions[d].node < 0) continue;
    const auto path =
        plan::nearest_over_pcie(topology, gpu, static_cast<NodeIndex>(positions[d].node));
    positions[d].distance = path.has_value() ? path->distance : kNoPath;
  }
  return positions;
}

std::vector<link::NicPosition> place_nics(const tune::Processors& usable,
                                          std::span<const transport::DeviceProperties> devices,
                                          const std::filesystem::path& sysfs) {
  std::vector<link::NicPosition> positions(devices.size());
  const std::filesystem::path nodes = sysfs / "devices" / "system" / "node";
  for (std::size_t d = 0; d < devices.size(); ++d) {
    const int numa = numa_of(devices[d]);
    if (numa >= 0) positions[d].distance = distance_from(nodes, numa, usable);
  }
  return positions;
}

link::NicsOfRoute nics_of_routes(const Machine& machine) {
  return [topology = machine.planned](const link::Route& route) {
    link::RouteNics nics;
    for (const int index : route) {
      const auto node = topology->link(static_cast<std::size_t>(index)).destination;
      if (topology->node(node).kind != topology::NodeKind::kNic) continue;
      if (nics.exit < 0) nics.exit = static_cast<int>(node);
      nics.entry = static_cast<int>(node);
    }
    return nics;
  };
}

}  // namespace ropewalk::comm
