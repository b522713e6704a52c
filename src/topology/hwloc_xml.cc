#include "topology/hwloc_xml.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <set>

#include "core/error.h"
#include "topology/building.h"
#include "topology/xml.h"

namespace ropewalk::topology {
namespace {

constexpr int kMaxHwlocDepth = 128;

/// What the objects around one say.
struct Around {
  std::set<int> nodes{};  ///< NUMA nodes of the nearest object that has some
  CpuIdentity identity{};
  std::string host_bridge{};
  std::vector<ScannedBridge> bridges{};
};

class HwlocReader {
 public:
  HwlocReader(std::string_view text, std::string_view origin)
      : xml_(text, origin, /*decode_entities=*/true), origin_(origin) {}

  Scan run() {
    const pugi::xml_node root = xml_.root();
    const std::string_view version = root.attribute("version").value();
    if (std::string_view(root.name()) != "topology" || !version.starts_with("2.")) {
      xml_.refuse(root, fmt::format("<{} version=\"{}\"> where hwloc's <topology version=\"2.0\"> "
                                    "should be",
                                    root.name(), version.substr(0, 16)));
    }
    const std::size_t slash = origin_.rfind('/');
    scan_.name = slash == std::string::npos ? origin_ : origin_.substr(slash + 1);
    if (scan_.name.ends_with(".xml")) scan_.name.resize(scan_.name.size() - 4);
    scan_.sources = {fmt::format("hwloc ({})", origin_)};
    for (const pugi::xml_node& child : root.children("object")) read(child, {}, 0);
    return std::move(scan_);
  }

 private:
  static std::string info(const pugi::xml_node& object, std::string_view name) {
    for (const pugi::xml_node& each : object.children("info")) {
      if (name == each.attribute("name").value()) return each.attribute("value").value();
    }
    return "";
  }

  /// "0x00000003" -> {0, 1}. Sets without end ("0xf...f") are of no use and empty here.
  std::string list_of(const pugi::xml_node& object, const char* attribute) const {
    const std::string_view mask = object.attribute(attribute).value();
    if (mask.find("...") != std::string_view::npos) return "";
    try {
      return cpu_list(mask);
    } catch (const Error& error) {
      xml_.refuse(object, error.what());
    }
  }

  static std::set<int> members(const std::string& list) {
    std::set<int> found;
    std::size_t at = 0;
    while (at < list.size()) {
      int first = 0;
      auto [end, error] = std::from_chars(list.data() + at, list.data() + list.size(), first);
      at = static_cast<std::size_t>(end - list.data());
      int last = first;
      if (at < list.size() && list[at] == '-') {
        end = std::from_chars(list.data() + at + 1, list.data() + list.size(), last).ptr;
        at = static_cast<std::size_t>(end - list.data());
      }
      for (int each = first; each <= last; ++each) found.insert(each);
      ++at;  // the comma
    }
    return found;
  }

  void read(const pugi::xml_node& object, Around around, int depth) {
    if (depth > kMaxHwlocDepth) xml_.refuse(object, fmt::format("deeper than {}", kMaxHwlocDepth));
    const std::string_view type = object.attribute("type").value();
    if (type == "Machine" || type == "Package") look_at_cpu(object, around.identity);
    if (object.attribute("nodeset")) {
      const std::set<int> nodes = members(list_of(object, "nodeset"));
      if (!nodes.empty()) around.nodes = nodes;
    }
    if (type == "NUMANode") {
      read_numa(object, around);
    } else if (type == "Bridge") {
      read_bridge(object, around);
    } else if (type == "PCIDev") {
      read_device(object, around);
      return;
    }
    for (const pugi::xml_node& child : object.children("object")) read(child, around, depth + 1);
  }

  static void look_at_cpu(const pugi::xml_node& object, CpuIdentity& identity) {
    if (std::string arch = info(object, "Architecture"); !arch.empty()) {
      if (arch == "aarch64") arch = "arm64";
      if (arch.starts_with("ppc64")) arch = "ppc64";
      identity.arch = arch;
    }
    if (const std::string vendor = info(object, "CPUVendor"); !vendor.empty()) {
      identity.vendor = vendor;
      identity.family = std::atoi(info(object, "CPUFamilyNumber").c_str());
      identity.model = std::atoi(info(object, "CPUModelNumber").c_str());
    }
  }

  void read_numa(const pugi::xml_node& object, const Around& around) {
    const long number = xml_.integer(object, "os_index");
    if (number < 0 || number > 65535) xml_.refuse(object, fmt::format("os_index {}", number));
    std::string cpus = list_of(object, "cpuset");
    // Ranks cannot run on memory nodes without CPUs, such as GPU memory.
    if (cpus.empty() || std::string_view(object.attribute("subtype").value()) == "GPUMemory")
      return;
    scan_.cpus.push_back({static_cast<int>(number), std::move(cpus), around.identity});
  }

  /// GB/s on the wire, as hwloc reports it; 0: unknown.
  PcieShape shape_of(const pugi::xml_node& object) const {
    if (!object.attribute("pci_link_speed")) return {0, 0};
    const double rate = xml_.number(object, "pci_link_speed");
    return rate > 0.1 && rate < 1000 ? pcie_shape(rate) : PcieShape{0, 0};
  }

  void read_bridge(const pugi::xml_node& object, Around& around) const {
    const std::string_view type = object.attribute("bridge_type").value();
    if (type.starts_with("0-")) {
      // "0000:[00-1f]": domain and first bus.
      std::string buses = object.attribute("bridge_pci").value();
      buses = buses.substr(0, buses.find('-'));
      std::erase(buses, '[');
      around.host_bridge = buses;
      around.bridges.clear();
      return;
    }
    const PcieShape shape = shape_of(object);
    around.bridges.push_back(
        {normal_bus_id(object.attribute("pci_busid").value()), shape.gen, shape.width});
  }

  void read_device(const pugi::xml_node& object, const Around& around) {
    // "0302 [10de:20b0] [10de:134f] a1"
    const std::string type = xml_.required(object, "pci_type");
    const std::string pci_class = type.substr(0, 4);
    const std::size_t open = type.find('[');
    const std::string vendor = open == std::string::npos ? "" : type.substr(open + 1, 4);
    const std::string ids = open == std::string::npos ? "" : type.substr(open + 1, 9);
    const std::optional<NodeKind> kind = kind_of_pci(pci_class, vendor);
    if (!kind) return;

    ScannedDevice device{.kind = *kind};
    device.bus_id = normal_bus_id(xml_.required(object, "pci_busid"));
    device.vendor = vendor;
    device.host_bridge = around.host_bridge;
    device.bridges = around.bridges;
    if (around.nodes.size() == 1) device.numa = *around.nodes.begin();
    const PcieShape shape = shape_of(object);
    device.gen = shape.gen;
    device.width = shape.width;
    if (*kind == NodeKind::kGpu) device.model = ids;
    for (const pugi::xml_node& child : object.children("object")) look_at_os_device(child, device);
    if (*kind == NodeKind::kNic && device.device.empty()) return;  // no driver: nothing can use it
    scan_.devices.push_back(std::move(device));
  }

  void look_at_os_device(const pugi::xml_node& object, ScannedDevice& device) const {
    const std::string name = object.attribute("name").value();
    const long type = xml_.integer(object, "osdev_type", -1);
    constexpr long kNetwork = 2;
    constexpr long kOpenFabrics = 3;
    if (device.kind == NodeKind::kNic) {
      // Of a verbs device and its network interface, the former is what fabrics use.
      if (type == kOpenFabrics || (type == kNetwork && device.device.empty())) device.device = name;
      return;
    }
    if (const std::string model = info(object, "GPUModel"); !model.empty()) device.model = model;
    for (const std::string_view prefix : {"nvml", "rsmi"}) {
      if (!name.starts_with(prefix)) continue;
      int index = 0;
      const char* end = name.data() + name.size();
      const auto result = std::from_chars(name.data() + prefix.size(), end, index);
      if (result.ec == std::errc() && result.ptr == end && index >= 0) device.index = index;
    }
  }

  XmlFile xml_;
  std::string origin_;
  Scan scan_;
};

}  // namespace

Scan scan_hwloc_xml(std::string_view text, std::string_view origin) {
  return HwlocReader(text, origin).run();
}

Topology read_hwloc_xml(std::string_view text, std::string_view origin) {
  Scan scan = scan_hwloc_xml(text, origin);
  try {
    return assemble(std::move(scan));
  } catch (const Error& error) {
    throw Error(error.code(), "{}: {}", origin, error.what());
  }
}

}  // namespace ropewalk::topology
