#include "topology/scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <tuple>

#include "topology/building.h"

namespace ropewalk::topology {
namespace {

class Assembly {
 public:
  explicit Assembly(Scan scan) : scan_(std::move(scan)), builder_(start(scan_)) {}

  Topology run() {
    if (scan_.cpus.empty()) {
      builder_.note("no NUMA node was seen: one CPU is assumed");
      scan_.cpus.push_back({});
    }
    make_cpus();
    // GPUs are numbered as NVML does, else by bus id; NICs by bus id.
    std::stable_sort(scan_.devices.begin(), scan_.devices.end(),
                     [](const ScannedDevice& a, const ScannedDevice& b) {
                       constexpr int kLast = 1 << 20;
                       return std::tuple(a.kind, a.index.value_or(kLast), a.bus_id) <
                              std::tuple(b.kind, b.index.value_or(kLast), b.bus_id);
                     });
    for (const ScannedDevice& device : scan_.devices) make_device(device);
    for (const ScannedDevice& device : scan_.devices) join_nvlinks(device);
    return Topology(std::move(builder_).finish());
  }

 private:
  static Description start(const Scan& scan) {
    Description description;
    description.name = scan.name.empty() ? "host" : scan.name;
    description.title = "what was found on " + description.name;
    description.sources = scan.sources;
    description.assumptions = scan.notes;
    return description;
  }

  void make_cpus() {
    std::vector<std::pair<NodeIndex, double>> made;
    for (const ScannedCpu& cpu : scan_.cpus) {
      if (by_numa_.contains(cpu.numa)) continue;
      Node node{.kind = NodeKind::kCpu, .numa = cpu.numa, .cpus = cpu.cpus};
      const CpuIdentity& is = cpu.identity;
      if (!is.arch.empty()) node.attributes.emplace_back("arch", is.arch);
      if (!is.vendor.empty()) {
        node.attributes.emplace_back("vendor", is.vendor);
        node.attributes.emplace_back("familyid", fmt::format("{}", is.family));
        node.attributes.emplace_back("modelid", fmt::format("{}", is.model));
      }
      const NodeIndex index = builder_.add(std::move(node));
      by_numa_[cpu.numa] = index;
      for (const auto& [other, rate] : made) {
        builder_.join({.source = other,
                       .destination = index,
                       .type = LinkType::kSmp,
                       .capacity = std::min(rate, smp_capacity(is)),
                       .assumed = true});
      }
      made.emplace_back(index, smp_capacity(is));
    }
    if (made.size() > 1) {
      builder_.note("rates between NUMA nodes are NCCL's planning figures for this CPU");
    }
  }

  NodeIndex cpu_of(const ScannedDevice& device) {
    if (device.numa) {
      if (const auto found = by_numa_.find(*device.numa); found != by_numa_.end()) {
        return found->second;
      }
    }
    if (by_numa_.size() > 1) {
      builder_.note(fmt::format("the NUMA node of {} is not known: taken for {}",
                                device.bus_id.empty() ? device.device : device.bus_id,
                                by_numa_.begin()->first));
    }
    return by_numa_.begin()->second;
  }

  void make_device(const ScannedDevice& device) {
    NodeIndex above = cpu_of(device);
    const std::optional<int> numa = builder_.node(above).numa;
    const auto top_of = [&](Attributes attributes, NodeIndex parent) {
      if (builder_.node(parent).kind == NodeKind::kCpu && !device.host_bridge.empty() &&
          find_attribute(attributes, "host_bridge") == nullptr) {
        attributes.emplace_back("host_bridge", device.host_bridge);
      }
      return attributes;
    };
    // The switches among the bridges: every second from below, the outermost first.
    const std::size_t count = device.bridges.size();
    for (std::size_t i = count % 2 == 0 ? 0 : 1; i + 1 < count; i += 2) {
      const ScannedBridge& bridge = device.bridges[i];
      const auto known = by_bus_id_.find(bridge.bus_id);
      if (known != by_bus_id_.end()) {
        above = known->second;
        continue;
      }
      Node node{.kind = NodeKind::kPcieSwitch, .numa = numa, .bus_id = bridge.bus_id};
      node.attributes = top_of(bridge.attributes, above);
      const NodeIndex made = builder_.add(std::move(node));
      by_bus_id_[bridge.bus_id] = made;
      builder_.join_pcie(made, above, bridge.gen, bridge.width);
      above = made;
    }

    Node node{.kind = device.kind, .numa = numa, .model = device.model, .bus_id = device.bus_id};
    node.attributes = top_of(device.attributes, above);
    if (device.kind == NodeKind::kNic) {
      node.device = device.device;
      node.net_gbps = device.net_gbps;
    } else {
      node.rank = gpus_++;
      if (device.index) node.attributes.emplace_back("gpu.dev", fmt::format("{}", *device.index));
      if (device.compute_capability > 0) {
        node.attributes.emplace_back("gpu.sm", fmt::format("{}", device.compute_capability));
      }
    }
    const NodeIndex made = builder_.add(std::move(node));
    if (!device.bus_id.empty()) by_bus_id_[device.bus_id] = made;
    builder_.join_pcie(made, above, device.gen, device.width);
    if (device.gen == 0 || device.width == 0) {
      builder_.note(fmt::format("the PCIe link of {} is not known: gen 3 x16 is assumed",
                                device.bus_id.empty() ? device.device : device.bus_id));
    }
  }

  void join_nvlinks(const ScannedDevice& device) {
    if (device.nvlinks.empty()) return;
    const LaneRates lane = nvlink_lane(device.compute_capability);
    const NodeIndex from = by_bus_id_.at(device.bus_id);
    std::map<std::pair<bool, std::string>, int> lanes;
    for (const ScannedDevice::Nvlink& each : device.nvlinks) {
      ++lanes[{each.to_switch, each.remote}];
    }
    for (const auto& [end, count] : lanes) {
      const auto& [to_switch, remote] = end;
      Link link{.source = from, .type = LinkType::kNvlink, .capacity = lane.capacity * count};
      link.effective = lane.effective * count;
      link.lanes = count;
      if (to_switch) {
        link.destination = switch_at(remote);
        builder_.join(link);
        continue;
      }
      const auto found = by_bus_id_.find(remote);
      if (found == by_bus_id_.end() || found->second == from) {
        builder_.note(fmt::format("{} NVLinks of {} lead to {}, which was not seen: left out",
                                  count, device.bus_id, remote));
        continue;
      }
      link.destination = found->second;
      builder_.link(link);
    }
  }

  /// One node per chip; one for all chips without an address.
  NodeIndex switch_at(const std::string& bus_id) {
    const auto found = switches_.find(bus_id);
    if (found != switches_.end()) return found->second;
    if (bus_id.empty()) {
      builder_.note("NVSwitches do not tell their addresses: drawn as one");
    }
    return switches_[bus_id] = builder_.add({.kind = NodeKind::kNvSwitch, .bus_id = bus_id});
  }

  Scan scan_;
  Builder builder_;
  std::map<int, NodeIndex> by_numa_;
  std::map<std::string, NodeIndex> by_bus_id_;
  std::map<std::string, NodeIndex> switches_;
  int gpus_ = 0;
};

}  // namespace

std::string normal_bus_id(std::string_view bus_id) {
  std::string out(bus_id);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::size_t colon = out.find(':');
  if (colon == 8 && out.starts_with("0000")) out.erase(0, 4);
  return out;
}

std::optional<NodeKind> kind_of_pci(std::string_view pci_class, std::string_view vendor) {
  if (pci_class.starts_with("02")) return NodeKind::kNic;
  const bool computes = vendor == "10de" || vendor == "1002";
  if (computes && (pci_class.starts_with("03") || pci_class.starts_with("12"))) {
    return NodeKind::kGpu;
  }
  return std::nullopt;
}

Topology assemble(Scan scan) { return Assembly(std::move(scan)).run(); }

}  // namespace ropewalk::topology
