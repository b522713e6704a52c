#include "machine/nic_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <limits>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <system_error>

#include "core/first_line.h"
#include "plan/device_path.h"
#include "topology/scan.h"

namespace ropewalk::machine {
namespace {

using topology::NodeIndex;

// Farther than any path.
constexpr std::int32_t kNoPath = 1'000'000;

std::string address_of(const transport::DeviceProperties& device) {
  return topology::normal_bus_id(std::filesystem::path(device.pci_path).filename().string());
}

int numa_at(const std::filesystem::path& device) {
  int numa = -1;
  const std::string text = first_line(device / "numa_node");
  std::from_chars(text.data(), text.data() + text.size(), numa);
  return numa;
}

int numa_of(const transport::DeviceProperties& device) {
  return device.pci_path.empty() ? -1 : numa_at(device.pci_path);
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

// A device's bridges from the CPU on, and itself: "pci0000:3a", "0000:3a:00.0", "0000:3b:00.0".
// Empty where it is at no PCI bus.
std::vector<std::string> bridges_to(const std::filesystem::path& device) {
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::canonical(device, error);
  if (error) return {};
  std::vector<std::string> parts;
  for (const std::filesystem::path& part : canonical) {
    const std::string text = part.string();
    if (!parts.empty() || (text.starts_with("pci") && text.find(':') != std::string::npos)) {
      parts.push_back(text);
    }
  }
  return parts;
}

// More than any path of bridges has.
constexpr std::int32_t kThroughCpu = 100;
constexpr std::int32_t kToOtherNode = 10'000;

std::int32_t numa_distance(const std::filesystem::path& sysfs, int from, int to) {
  if (from < 0 || to < 0 || from == to) return 0;
  std::istringstream distances(
      first_line(sysfs / "devices" / "system" / "node" / fmt::format("node{}", from) / "distance"));
  int distance = 0;
  for (int node = 0; distances >> distance; ++node) {
    if (node == to) return kToOtherNode + distance;
  }
  return kToOtherNode;
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

std::vector<link::NicPosition> nic_positions_near_gpu(
    std::string_view gpu_address, std::span<const transport::DeviceProperties> devices,
    const std::filesystem::path& sysfs) {
  std::vector<link::NicPosition> positions(devices.size());
  const std::filesystem::path folder =
      sysfs / "bus" / "pci" / "devices" / topology::normal_bus_id(gpu_address);
  const std::vector<std::string> gpu = bridges_to(folder);
  if (gpu.empty()) return positions;
  for (std::size_t d = 0; d < devices.size(); ++d) {
    if (devices[d].pci_path.empty()) continue;
    const std::vector<std::string> nic = bridges_to(devices[d].pci_path);
    if (nic.empty()) continue;
    const auto common = std::ranges::mismatch(gpu, nic).in1 - gpu.begin();
    const auto bridges =
        static_cast<std::int32_t>(gpu.size() + nic.size()) - 2 * static_cast<std::int32_t>(common);
    // The first is the CPU's.
    const bool one_switch = common > 1;
    positions[d].distance =
        bridges + (one_switch ? 0
                              : kThroughCpu + numa_distance(sysfs, numa_at(folder),
                                                            numa_at(devices[d].pci_path)));
  }
  return positions;
}

std::vector<int> nics_in_use(const link::Rails& rails, int rank,
                             std::span<const int> host_of_rank) {
  std::vector<int> devices;
  const auto host = [&](std::size_t r) { return host_of_rank[r]; };
  for (int rail = 0; rail < rails.count(); ++rail) {
    for (std::size_t peer = 0; peer < host_of_rank.size(); ++peer) {
      if (host(peer) == host(static_cast<std::size_t>(rank))) continue;
      const int device = rails.device(rank, static_cast<int>(peer), rail);
      if (std::ranges::find(devices, device) == devices.end()) devices.push_back(device);
    }
  }
  return devices;
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

}  // namespace ropewalk::machine
