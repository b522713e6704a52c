#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "core/error.h"
#include "topology/building.h"
#include "topology/nccl_xml.h"
#include "topology/rates.h"
#include "topology/xml.h"

namespace ropewalk::topology {
namespace {

constexpr int kMaxNcclDepth = 32;
constexpr std::string_view kSwitchClass = "0x068000";
constexpr std::string_view kCpuClass = "0x068001";

/// Appends an element's attributes with PREFIX before their names.
void take(Attributes& to, const pugi::xml_node& element, const std::string& prefix,
          std::initializer_list<std::string_view> but = {}) {
  for (const pugi::xml_attribute& each : element.attributes()) {
    // A dot in a name would make it that of an element inside.
    const bool wanted = std::find(but.begin(), but.end(), each.name()) == but.end() &&
                        std::string_view(each.name()).find('.') == std::string_view::npos;
    if (wanted && find_attribute(to, prefix + each.name()) == nullptr) {
      to.emplace_back(prefix + each.name(), each.value());
    }
  }
}

/// An nvlink, xgmi, c2c or pcilink element, joined when all nodes are there.
struct Pending {
  NodeIndex from;
  NodeIndex cpu;  ///< above `from`
  pugi::xml_node element;
};

class NcclReader {
 public:
  NcclReader(std::string_view text, std::string_view origin)
      : xml_(text, origin, /*decode_entities=*/false), builder_(start(origin)) {}

  Description run() {
    const pugi::xml_node system = xml_.root();
    if (std::string_view(system.name()) != "system") {
      xml_.refuse(system, fmt::format("<{}> where <system> should be", system.name()));
    }
    if (xml_.integer(system, "version") != 1) xml_.refuse(system, "version is not 1");
    for (const pugi::xml_node& child : system.children()) {
      if (is(child, "cpu")) {
        read_cpu(system, child);
      } else {
        skip(child, system);
      }
    }
    join_cpus();
    for (const Pending& each : pending_) join(each);
    number_gpus();
    return std::move(builder_).finish();
  }

 private:
  static Description start(std::string_view origin) {
    Description description;
    const std::size_t slash = origin.rfind('/');
    std::string_view file = slash == std::string_view::npos ? origin : origin.substr(slash + 1);
    if (file.ends_with(".xml")) file.remove_suffix(4);
    description.name = file.empty() ? "nccl" : file;
    description.title = fmt::format("read from the NCCL topology {}", origin);
    description.sources = {fmt::format("NCCL topology XML {}", origin),
                           "rates by NCCL's graph model"};
    return description;
  }

  static bool is(const pugi::xml_node& element, std::string_view name) {
    return element.type() == pugi::node_element && name == element.name();
  }

  void skip(const pugi::xml_node& element, const pugi::xml_node& within) {
    if (element.type() != pugi::node_element) return;
    builder_.note(fmt::format("line {}: <{}> in <{}> is not known and left out",
                              xml_.line_of(element), element.name(), within.name()));
  }

  void remember(const pugi::xml_node& element, const std::string& bus_id, NodeIndex node) {
    if (!by_bus_id_.emplace(bus_id, node).second) {
      xml_.refuse(element, fmt::format("busid {} twice", bus_id.substr(0, 64)));
    }
  }

  void read_cpu(const pugi::xml_node& system, const pugi::xml_node& element) {
    Node node;
    node.kind = NodeKind::kCpu;
    const long numa = xml_.integer(element, "numaid");
    if (numa < -1 || numa > 65535) xml_.refuse(element, fmt::format("numaid {}", numa));
    node.numa = static_cast<int>(numa);
    if (!numas_.insert(numa).second)
      xml_.refuse(element,
                  fmt::format("numaid {} twice; files of several hosts are not read", numa));
    if (const char* mask = element.attribute("affinity").value(); *mask != '\0') {
      try {
        node.cpus = cpu_list(mask);
      } catch (const Error& error) {
        xml_.refuse(element, error.what());
      }
    }
    take(node.attributes, element, "", {"numaid"});
    if (cpus_.empty()) take(node.attributes, system, "system.", {"version"});
    const NodeIndex cpu = builder_.add(std::move(node));
    cpus_.push_back({cpu, identity(element)});
    for (const pugi::xml_node& child : element.children()) {
      if (is(child, "pci")) {
        read_pci(child, cpu, cpu, 0);
      } else if (is(child, "nic")) {
        read_nic(child, cpu);
      } else {
        skip(child, element);
      }
    }
  }

  CpuIdentity identity(const pugi::xml_node& element) const {
    return {element.attribute("arch").value(), element.attribute("vendor").value(),
            static_cast<int>(xml_.integer(element, "familyid", 0)),
            static_cast<int>(xml_.integer(element, "modelid", 0))};
  }

  std::optional<int> speed_of(const pugi::xml_node& element) {
    const std::string_view speed = element.attribute("link_speed").value();
    const std::optional<int> gen = pcie_gen(speed);
    if (!speed.empty() && !gen.has_value()) {
      builder_.note(
          fmt::format("line {}: link_speed \"{}\" is not a speed of PCIe: taken for gen 3",
                      xml_.line_of(element), speed.substr(0, 64)));
    }
    return gen;
  }

  void read_pci(const pugi::xml_node& element, NodeIndex above, NodeIndex cpu, int depth) {
    if (depth > kMaxNcclDepth) xml_.refuse(element, fmt::format("deeper than {}", kMaxNcclDepth));
    Node node;
    node.bus_id = xml_.required(element, "busid");
    node.numa = builder_.node(cpu).numa;
    const std::optional<int> gen = speed_of(element);
    const long width = xml_.integer(element, "link_width", 0);
    if (width < 0 || width > 64) xml_.refuse(element, fmt::format("link_width {}", width));
    take(node.attributes, element, "", {"busid"});

    std::vector<pugi::xml_node> gpus;
    std::vector<pugi::xml_node> nics;
    std::vector<pugi::xml_node> below;
    for (const pugi::xml_node& child : element.children()) {
      if (is(child, "gpu")) {
        gpus.push_back(child);
      } else if (is(child, "nic")) {
        nics.push_back(child);
      } else if (is(child, "pci")) {
        below.push_back(child);
      } else if (!is(child, "pcilink")) {
        skip(child, element);
      }
    }
    if (gpus.size() + nics.size() > 1 || (gpus.size() + nics.size() == 1 && !below.empty())) {
      xml_.refuse(element, "<pci> holds more than one of <gpu>, <nic> and <pci>s");
    }
    if (gpus.size() == 1) describe_gpu(gpus[0], node);
    const std::vector<pugi::xml_node> ports = nics.empty() ? gpus : ports_of(nics[0]);
    const bool one_port = nics.size() == 1 && ports.size() <= 1;
    if (one_port) describe_nic(nics[0], ports, node);
    if (gpus.empty() && !one_port) {
      // Also for the PCI side of an NVSwitch: its fabric does not lead to PCIe.
      node.kind = NodeKind::kPcieSwitch;
    }

    const std::string bus_id = node.bus_id;
    const NodeIndex made = builder_.add(std::move(node));
    remember(element, bus_id, made);
    builder_.join_pcie(made, above, gen.value_or(0), static_cast<int>(width));
    if (nics.size() == 1 && !one_port) {
      for (const pugi::xml_node& port : ports) {
        Node nic{.numa = builder_.node(cpu).numa};
        describe_nic(nics[0], {port}, nic);
        builder_.join_pcie(builder_.add(std::move(nic)), made, gen.value_or(0),
                           static_cast<int>(width));
      }
    }
    for (const pugi::xml_node& child : below) read_pci(child, made, cpu, depth + 1);
    for (const pugi::xml_node& child : element.children("pcilink")) {
      pending_.push_back({made, cpu, child});
    }
    for (const pugi::xml_node& gpu : gpus) {
      for (const pugi::xml_node& child : gpu.children()) {
        if (is(child, "nvlink") || is(child, "xgmi") || is(child, "c2c")) {
          pending_.push_back({made, cpu, child});
        } else {
          skip(child, gpu);
        }
      }
    }
  }

  void describe_gpu(const pugi::xml_node& gpu, Node& node) {
    node.kind = NodeKind::kGpu;
    take(node.attributes, gpu, "gpu.");
    gpus_.push_back({gpu, builder_.so_far().nodes.size()});
    // Known to name one model family; the XML has no names.
    const long sm = xml_.integer(gpu, "sm", 0);
    if (sm > 0 && !gpu.attribute("gcn")) node.model = fmt::format("sm_{}", sm);
    if (gpu.attribute("gcn")) node.model = gpu.attribute("gcn").value();
  }

  std::vector<pugi::xml_node> ports_of(const pugi::xml_node& nic) {
    std::vector<pugi::xml_node> ports;
    for (const pugi::xml_node& child : nic.children()) {
      if (is(child, "net")) {
        ports.push_back(child);
      } else {
        skip(child, nic);
      }
    }
    return ports;
  }

  /// A NIC with one port or none.
  void describe_nic(const pugi::xml_node& nic, const std::vector<pugi::xml_node>& ports,
                    Node& node) {
    node.kind = NodeKind::kNic;
    take(node.attributes, nic, "nic.");
    if (ports.empty()) {
      node.attributes.emplace_back("net", "none");
      return;
    }
    const pugi::xml_node& net = ports[0];
    node.device = net.attribute("name").value();
    const long speed = xml_.integer(net, "speed", 0);
    if (speed < 0) xml_.refuse(net, fmt::format("speed {}", speed));
    node.net_gbps = static_cast<double>(speed == 0 ? 10000 : speed) / 8000;
    take(node.attributes, net, "net.", {"name"});
  }

  /// A NIC on the CPU itself: its attachment is unknown, so its link is as fast as its port.
  void read_nic(const pugi::xml_node& element, NodeIndex cpu) {
    std::vector<pugi::xml_node> ports = ports_of(element);
    if (ports.empty()) return skip(element, element.parent());
    const std::string holder = fmt::format("{}", holders_++);
    for (const pugi::xml_node& port : ports) {
      Node nic{.numa = builder_.node(cpu).numa};
      describe_nic(element, {port}, nic);
      if (ports.size() > 1) nic.attributes.emplace_back("holder", holder);
      const double rate = *nic.net_gbps;
      builder_.join({.source = builder_.add(std::move(nic)),
                     .destination = cpu,
                     .type = LinkType::kPcie,
                     .capacity = rate,
                     .assumed = true});
    }
  }

  void join_cpus() {
    for (std::size_t a = 0; a < cpus_.size(); ++a) {
      for (std::size_t b = a + 1; b < cpus_.size(); ++b) {
        builder_.join(
            {.source = cpus_[a].first,
             .destination = cpus_[b].first,
             .type = LinkType::kSmp,
             .capacity = std::min(smp_capacity(cpus_[a].second), smp_capacity(cpus_[b].second))});
      }
    }
  }

  void join(const Pending& each) {
    const std::string_view what = each.element.name();
    if (what == "pcilink") return join_switches(each);
    if (what == "c2c") return join_c2c(each);
    const long count = xml_.integer(each.element, "count");
    if (count < 1 || count > 4096) xml_.refuse(each.element, fmt::format("count {}", count));
    const std::string target = xml_.required(each.element, "target");
    const std::string tclass = xml_.required(each.element, "tclass");
    const bool xgmi = what == "xgmi";
    Link link{.source = each.from, .type = xgmi ? LinkType::kXgmi : LinkType::kNvlink};
    link.lanes = static_cast<int>(count);
    link.attributes = {{"tclass", tclass}};
    if (xgmi) {
      link.capacity = 50.0 * static_cast<double>(count);
      link.effective = 36.0 * static_cast<double>(count);
    } else {
      const LaneRates rates = nvlink_lane(compute_capability_of(each.from));
      link.capacity = rates.capacity * static_cast<double>(count);
      link.effective = rates.effective * static_cast<double>(count);
    }
    if (tclass.starts_with(kCpuClass)) {
      link.destination = each.cpu;
      link.attributes.emplace_back("target", target);
      builder_.join(link);
    } else if (tclass.starts_with(kSwitchClass)) {
      link.destination = switch_at(target);
      builder_.join(link);
    } else if (const auto found = by_bus_id_.find(target); found != by_bus_id_.end()) {
      if (found->second == each.from) xml_.refuse(each.element, "leads to its own GPU");
      link.destination = found->second;
      builder_.link(link);
    } else {
      // A GPU that is not in the file: kept for writing, of no use for plans.
      builder_.node(each.from).attributes.emplace_back(fmt::format("{}.{}", what, target),
                                                       fmt::format("{} {}", count, tclass));
      builder_.note(fmt::format("line {}: {} to {}, which is not there, is left out",
                                xml_.line_of(each.element), what, target));
    }
  }

  void join_c2c(const Pending& each) {
    const long count = xml_.integer(each.element, "count");
    const double megabytes = xml_.number(each.element, "bw");
    if (count < 1 || count > 4096) xml_.refuse(each.element, fmt::format("count {}", count));
    Link link{.source = each.from, .destination = each.cpu, .type = LinkType::kC2c};
    link.capacity = megabytes * static_cast<double>(count) / 1000;
    if (!(link.capacity > 0)) xml_.refuse(each.element, fmt::format("bw {}", megabytes));
    link.lanes = static_cast<int>(count);
    link.attributes = {{"bw", each.element.attribute("bw").value()}};
    builder_.join(link);
  }

  void join_switches(const Pending& each) {
    const auto found = by_bus_id_.find(xml_.required(each.element, "target"));
    if (found == by_bus_id_.end()) return skip(each.element, each.element.parent());
    if (found->second == each.from) xml_.refuse(each.element, "leads to its own switch");
    Link link{.source = each.from, .destination = found->second, .type = LinkType::kPcie};
    const pugi::xml_node pci = each.element.parent();
    link.gen = speed_of(pci).value_or(3);
    link.width = static_cast<int>(xml_.integer(pci, "link_width", 0));
    if (*link.width == 0) link.width = 16;
    link.capacity = pcie_capacity(*link.gen, *link.width);
    link.attributes = {{"pcilink", "1"}};
    builder_.link(link);
  }

  int compute_capability_of(NodeIndex gpu) const {
    const std::string* sm = find_attribute(builder_.so_far().nodes[gpu].attributes, "gpu.sm");
    return sm == nullptr ? 0 : std::atoi(sm->c_str());
  }

  NodeIndex switch_at(const std::string& target) {
    if (const auto found = switches_.find(target); found != switches_.end()) {
      return found->second;
    }
    return switches_[target] = builder_.add({.kind = NodeKind::kNvSwitch, .bus_id = target});
  }

  void number_gpus() {
    const bool by_rank = std::all_of(gpus_.begin(), gpus_.end(), [](const auto& each) {
      return static_cast<bool>(each.first.attribute("rank"));
    });
    std::vector<std::pair<long, NodeIndex>> order;
    std::set<long> seen;
    for (const auto& [element, node] : gpus_) {
      const long number = xml_.integer(element, by_rank ? "rank" : "dev");
      (void)xml_.integer(element, "dev");
      if (!seen.insert(number).second) {
        xml_.refuse(element, fmt::format("{} {} twice", by_rank ? "rank" : "dev", number));
      }
      order.emplace_back(number, node);
    }
    std::sort(order.begin(), order.end());
    for (std::size_t i = 0; i < order.size(); ++i) {
      builder_.node(order[i].second).rank = static_cast<int>(i);
      builder_.node(order[i].second).id = fmt::format("gpu{}", i);
    }
  }

  XmlFile xml_;
  Builder builder_;
  std::map<std::string, NodeIndex> by_bus_id_;
  std::map<std::string, NodeIndex> switches_;  ///< NVSwitches
  std::set<long> numas_;
  std::vector<std::pair<NodeIndex, CpuIdentity>> cpus_;
  std::vector<std::pair<pugi::xml_node, NodeIndex>> gpus_;
  std::vector<Pending> pending_;
  int holders_ = 0;
};

}  // namespace

Topology read_nccl_xml(std::string_view text, std::string_view origin) {
  Description description = NcclReader(text, origin).run();
  try {
    return Topology(std::move(description));
  } catch (const Error& error) {
    throw Error(error.code(), "{}: {}", origin, error.what());
  }
}

}  // namespace ropewalk::topology
