#include "topology/sysfs.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <system_error>

#include "core/first_line.h"
#include "topology/building.h"

namespace ropewalk::topology {
namespace {

namespace fs = std::filesystem;

/// Entries of a folder by name, sorted; none where it cannot be read.
std::vector<std::string> entries(const fs::path& folder) {
  std::vector<std::string> found;
  std::error_code ignored;
  for (auto it = fs::directory_iterator(folder, ignored); it != fs::directory_iterator();
       it.increment(ignored)) {
    found.push_back(it->path().filename());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::optional<int> number_of(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

/// "0000:3b:00.0".
bool is_bus_id(std::string_view text) {
  return text.size() >= 12 && text[text.size() - 2] == '.' &&
         std::count(text.begin(), text.end(), ':') == 2;
}

/// "0x10de" -> "10de".
std::string digits(const std::string& text) {
  return text.starts_with("0x") ? text.substr(2) : text;
}

struct Shape {
  int gen = 0;
  int width = 0;
};

/// The highest rate of a function, or its present rate if the highest is unknown.
Shape shape_of(const fs::path& function) {
  Shape shape;
  for (const char* which : {"max_link", "current_link"}) {
    if (shape.gen == 0) {
      shape.gen = pcie_gen(first_line(function / fmt::format("{}_speed", which))).value_or(0);
    }
    if (shape.width == 0) {
      const int width =
          number_of(first_line(function / fmt::format("{}_width", which))).value_or(0);
      if (width > 0 && width <= 64) shape.width = width;
    }
  }
  return shape;
}

/// Of a link: what both ends can.
Shape link_above(const fs::path& function, const fs::path& port) {
  Shape shape = shape_of(function);
  if (is_bus_id(port.filename().string())) {
    const Shape other = shape_of(port);
    if (other.gen > 0 && shape.gen > 0) shape.gen = std::min(shape.gen, other.gen);
    if (other.width > 0 && shape.width > 0) shape.width = std::min(shape.width, other.width);
  }
  return shape;
}

/// PCI ids as NCCL's XML has them.
Attributes identity(const fs::path& function, const Shape& shape) {
  Attributes found;
  for (const char* name : {"class", "vendor", "device", "subsystem_vendor", "subsystem_device"}) {
    if (std::string value = first_line(function / name); !value.empty()) {
      found.emplace_back(name, std::move(value));
    }
  }
  if (shape.gen > 0) found.emplace_back("link_speed", std::string(pcie_link_speed(shape.gen)));
  if (shape.width > 0) found.emplace_back("link_width", fmt::format("{}", shape.width));
  return found;
}

/// The folder of a function within /sys/devices, where its parents are the folders above.
fs::path folder_of(const fs::path& root, const std::string& bus_id) {
  std::error_code error;
  fs::path found = fs::canonical(root / "sys/bus/pci/devices" / bus_id, error);
  return error ? fs::path() : found;
}

void add_nic(ScannedDevice& nic, const fs::path& function) {
  for (const std::string& verbs : entries(function / "infiniband")) {
    nic.device = verbs;
    const fs::path device = function / "infiniband" / verbs;
    if (std::string guid = first_line(device / "node_guid"); !guid.empty()) {
      std::erase(guid, ':');
      nic.attributes.emplace_back("net.guid", "0x" + guid);
    }
    for (const std::string& port : entries(device / "ports")) {
      // "200 Gb/sec (4X HDR)"
      const std::string rate = first_line(device / "ports" / port / "rate");
      const double gigabits = std::strtod(rate.c_str(), nullptr);
      if (gigabits > 0) {
        nic.net_gbps = gigabits / 8;
        nic.attributes.emplace_back("net.port", port);
        break;
      }
    }
    break;
  }
  for (const std::string& interface : entries(function / "net")) {
    if (nic.device.empty()) nic.device = interface;
    const int megabits = number_of(first_line(function / "net" / interface / "speed")).value_or(0);
    if (!nic.net_gbps && megabits > 0) nic.net_gbps = megabits / 8000.0;
  }
  // virtio's network interface is one folder further down.
  if (!nic.device.empty()) return;
  for (const std::string& below : entries(function)) {
    for (const std::string& interface : entries(function / below / "net")) {
      if (nic.device.empty()) nic.device = interface;
    }
  }
}

CpuIdentity cpu_identity(const fs::path& root) {
  CpuIdentity identity;
#if defined(__x86_64__)
  identity.arch = "x86_64";
#elif defined(__aarch64__)
  identity.arch = "arm64";
#elif defined(__powerpc64__)
  identity.arch = "ppc64";
#endif
  std::ifstream in(root / "proc/cpuinfo");
  for (std::string line; std::getline(in, line) && !line.empty();) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string value = line.substr(colon + 2);
    if (line.starts_with("vendor_id")) identity.vendor = value;
    if (line.starts_with("cpu family")) identity.family = number_of(value).value_or(0);
    if (line.starts_with("model\t") || line.starts_with("model ")) {
      if (!line.starts_with("model name")) identity.model = number_of(value).value_or(0);
    }
  }
  return identity;
}

void scan_cpus(Scan& scan, const fs::path& root) {
  const CpuIdentity identity = cpu_identity(root);
  for (const std::string& entry : entries(root / "sys/devices/system/node")) {
    if (!entry.starts_with("node")) continue;
    const std::optional<int> number = number_of(std::string_view(entry).substr(4));
    const std::string cpus = first_line(root / "sys/devices/system/node" / entry / "cpulist");
    if (number && !cpus.empty()) scan.cpus.push_back({*number, cpus, identity});
  }
  if (!scan.cpus.empty()) return;
  const std::string online = first_line(root / "sys/devices/system/cpu/online");
  scan.notes.push_back("NUMA nodes are not told by /sys: all CPUs are taken for one");
  scan.cpus.push_back({0, online, identity});
}

}  // namespace

Scan scan_sysfs(const fs::path& root) {
  Scan scan;
  scan.sources = {"Linux sysfs"};
  scan_cpus(scan, root);
  const fs::path functions = root / "sys/bus/pci/devices";
  std::error_code error;
  if (!fs::is_directory(functions, error)) {
    scan.notes.push_back("PCI devices cannot be read: no /sys/bus/pci/devices");
    return scan;
  }
  for (const std::string& bus_id : entries(functions)) {
    const fs::path folder = folder_of(root, bus_id);
    if (folder.empty()) continue;
    const std::string vendor = digits(first_line(folder / "vendor"));
    const std::optional<NodeKind> kind = kind_of_pci(digits(first_line(folder / "class")), vendor);
    if (!kind) continue;
    ScannedDevice device{.kind = *kind, .bus_id = normal_bus_id(bus_id), .vendor = vendor};
    const int numa = number_of(first_line(folder / "numa_node")).value_or(-1);
    if (numa >= 0) device.numa = numa;
    if (*kind == NodeKind::kGpu)
      device.model = vendor + ":" + digits(first_line(folder / "device"));
    for (fs::path above = folder.parent_path(); above.has_filename(); above = above.parent_path()) {
      const std::string name = above.filename();
      if (is_bus_id(name)) {
        device.bridges.insert(device.bridges.begin(), {normal_bus_id(name)});
      } else if (name.starts_with("pci")) {
        device.host_bridge = name.substr(3);
        break;
      } else {
        break;
      }
    }
    if (*kind == NodeKind::kNic) {
      // A NIC that no driver serves is of no use.
      ScannedDevice looked = device;
      add_nic(looked, folder);
      if (looked.device.empty()) continue;
    }
    scan.devices.push_back(std::move(device));
  }
  add_sysfs(scan, root);
  return scan;
}

void add_sysfs(Scan& scan, const fs::path& root) {
  for (ScannedDevice& device : scan.devices) {
    const fs::path folder = folder_of(root, device.bus_id);
    if (folder.empty()) continue;
    const Shape shape = link_above(folder, folder.parent_path());
    if (shape.gen > 0) device.gen = shape.gen;
    if (shape.width > 0) device.width = shape.width;
    device.attributes = identity(folder, {device.gen, device.width});
    if (const int numa = number_of(first_line(folder / "numa_node")).value_or(-1); numa >= 0) {
      device.numa = numa;
    }
    if (device.kind == NodeKind::kNic) add_nic(device, folder);
    for (ScannedBridge& bridge : device.bridges) {
      const fs::path port = folder_of(root, bridge.bus_id);
      if (port.empty()) continue;
      const Shape above = link_above(port, port.parent_path());
      if (above.gen > 0) bridge.gen = above.gen;
      if (above.width > 0) bridge.width = above.width;
      bridge.attributes = identity(port, {bridge.gen, bridge.width});
    }
  }
  const std::string offline = first_line(root / "sys/devices/system/cpu/offline");
  if (!offline.empty()) scan.notes.push_back(fmt::format("CPUs {} are offline", offline));
}

}  // namespace ropewalk::topology
