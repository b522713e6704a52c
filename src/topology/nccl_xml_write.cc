#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/error.h"
#include "topology/building.h"
#include "topology/nccl_form.h"
#include "topology/nccl_xml.h"
#include "topology/rates.h"

namespace ropewalk::topology {
namespace {

constexpr NodeIndex kNone = static_cast<NodeIndex>(-1);

struct Element {
  std::string name{};
  Attributes attributes{};
  std::vector<Element> children{};

  void set(std::string_view key, std::string value) {
    if (find_attribute(attributes, key) == nullptr) attributes.emplace_back(key, std::move(value));
  }
};

void print(const Element& element, int depth, std::string& out) {
  out.append(static_cast<std::size_t>(depth) * 2, ' ');
  out.append("<").append(element.name);
  for (const auto& [key, value] : element.attributes) {
    out.append(" ").append(key).append("=\"").append(value).append("\"");
  }
  if (element.children.empty()) {
    out += "/>\n";
    return;
  }
  out += ">\n";
  for (const Element& child : element.children) print(child, depth + 1, out);
  out.append(static_cast<std::size_t>(depth) * 2, ' ');
  out += "</" + element.name + ">\n";
}

bool holds_a_device(const Element& element) {
  return element.name == "gpu" || element.name == "nic" ||
         std::any_of(element.children.begin(), element.children.end(), holds_a_device);
}

/// The attributes whose names begin with PREFIX, without it; with no prefix, those without any.
Attributes those_of(const Attributes& from, std::string_view prefix) {
  Attributes found;
  for (const auto& [key, value] : from) {
    if (prefix.empty() ? key.find('.') == std::string::npos : key.starts_with(prefix)) {
      found.emplace_back(key.substr(prefix.size()), value);
    }
  }
  return found;
}

class Writer {
 public:
  Writer(const Topology& topology, int host) : topology_(topology), host_(host) {}

  NcclXml run() {
    find_devices();
    find_parents();
    name_bus_ids();

    Element system{"system", {{"version", "1"}}};
    for (const NodeIndex cpu : cpus_) {
      const Node& node = topology_.node(cpu);
      for (const auto& [key, value] : those_of(node.attributes, "system.")) system.set(key, value);
    }
    for (std::size_t i = 0; i < std::max<std::size_t>(cpus_.size(), 1); ++i) {
      Element cpu = cpus_.empty() ? invented_cpu() : cpu_element(i);
      if (i == 0) {
        for (const NodeIndex device : unattached_) add_child(cpu, device);
      }
      std::erase_if(cpu.children, [](const Element& child) { return !holds_a_device(child); });
      if (!cpu.children.empty()) system.children.push_back(std::move(cpu));
    }
    note_what_is_lost();

    NcclXml made;
    print(system, 0, made.text);
    made.notes = std::move(notes_);
    check_nccl_form(made.text, fmt::format("{} as NCCL topology", topology_.name()));
    return made;
  }

 private:
  [[nodiscard]] bool here(NodeIndex node) const { return topology_.node(node).host == host_; }

  void note(std::string text) {
    if (std::find(notes_.begin(), notes_.end(), text) == notes_.end()) {
      notes_.push_back(std::move(text));
    }
  }

  void find_devices() {
    if (host_ < 0 || host_ >= topology_.hosts()) {
      throw Error(Errc::kInvalidArgument, "host {}: {} has {} hosts, numbered from 0", host_,
                  topology_.name(), topology_.hosts());
    }
    bool any = false;
    for (NodeIndex i = 0; i < topology_.nodes().size(); ++i) {
      const NodeKind kind = topology_.node(i).kind;
      if (!here(i)) continue;
      if (kind == NodeKind::kCpu) cpus_.push_back(i);
      any = any || kind == NodeKind::kGpu || kind == NodeKind::kNic;
    }
    if (!any) {
      throw Error(Errc::kInvalidArgument, "{}: host {} has neither GPU nor NIC", topology_.name(),
                  host_);
    }
  }

  /// The PCIe tree: breadth first from the CPUs.
  void find_parents() {
    parent_.assign(topology_.nodes().size(), kNone);
    children_.resize(topology_.nodes().size());
    std::vector<NodeIndex> open = cpus_;
    for (std::size_t next = 0; next < open.size(); ++next) {
      const NodeIndex at = open[next];
      for (const LinkIndex l : topology_.links_from(at)) {
        const Link& link = topology_.link(l);
        const NodeIndex to = link.destination;
        if (link.type != LinkType::kPcie || !here(to) || to == parent_[at] ||
            find_attribute(link.attributes, "pcilink") != nullptr) {
          continue;
        }
        if (parent_[to] != kNone || topology_.node(to).kind == NodeKind::kCpu) {
          if (at < to || topology_.node(to).kind == NodeKind::kCpu) {
            note(fmt::format("PCIe between {} and {} is left out: the form holds trees only",
                             topology_.node(at).id, topology_.node(to).id));
          }
          continue;
        }
        parent_[to] = at;
        children_[at].push_back(to);
        open.push_back(to);
      }
    }
    for (std::vector<NodeIndex>& each : children_) std::sort(each.begin(), each.end());
    for (NodeIndex i = 0; i < topology_.nodes().size(); ++i) {
      const NodeKind kind = topology_.node(i).kind;
      if (here(i) && parent_[i] == kNone && (kind == NodeKind::kGpu || kind == NodeKind::kNic)) {
        unattached_.push_back(i);
      }
    }
    if (!unattached_.empty()) {
      note(fmt::format("{} of {} devices are on no PCIe link: put on the first CPU, gen 4 x16",
                       unattached_.size(), topology_.nodes().size()));
    }
  }

  void name_bus_ids() {
    std::set<std::string> taken;
    for (const Node& node : topology_.nodes()) taken.insert(node.bus_id);
    bus_ids_.resize(topology_.nodes().size());
    std::set<std::string> mine;
    for (NodeIndex i = 0; i < topology_.nodes().size(); ++i) {
      const Node& node = topology_.node(i);
      // NVSwitches may bear the address of their own PCI side.
      if (!here(i) || node.bus_id.empty() || node.kind == NodeKind::kNvSwitch) continue;
      if (!mine.insert(node.bus_id).second) {
        throw Error(Errc::kInvalidArgument, "{}: bus id {} is of two devices", topology_.name(),
                    node.bus_id);
      }
    }
    int next = 1;
    for (NodeIndex i = 0; i < topology_.nodes().size(); ++i) {
      const NodeKind kind = topology_.node(i).kind;
      if (!here(i) || kind == NodeKind::kCpu || kind == NodeKind::kNetwork) continue;
      bus_ids_[i] = topology_.node(i).bus_id;
      if (!bus_ids_[i].empty() || is_bare_nic(i)) continue;
      do {
        bus_ids_[i] = fmt::format("{:04x}:{:02x}:00.0", next / 256, next % 256);
        ++next;
      } while (!taken.insert(bus_ids_[i]).second);
      if (kind == NodeKind::kGpu) {
        note("bus ids are invented: NCCL finds GPUs by bus id, so put in the real ones");
      }
    }
  }

  /// A port that has no PCI element of its own: of a card with several, or on the CPU itself.
  [[nodiscard]] bool is_bare_nic(NodeIndex index) const {
    const Node& node = topology_.node(index);
    if (node.kind != NodeKind::kNic || !node.bus_id.empty() || parent_[index] == kNone) {
      return false;
    }
    const Node& above = topology_.node(parent_[index]);
    if (above.kind == NodeKind::kCpu) {
      const auto link = topology_.find_link(index, parent_[index], LinkType::kPcie);
      return link && !topology_.link(*link).gen && !topology_.link(*link).nominal;
    }
    const std::string* pci_class = find_attribute(above.attributes, "class");
    return pci_class != nullptr && pci_class->starts_with("0x02");
  }

  Element cpu_element(std::size_t number) {
    const NodeIndex index = cpus_[number];
    const Node& node = topology_.node(index);
    Element element{"cpu",
                    {{"numaid", fmt::format("{}", node.numa.value_or(static_cast<int>(number)))}}};
    for (const auto& [key, value] : those_of(node.attributes, "")) element.set(key, value);
    if (!node.cpus.empty()) element.set("affinity", cpu_mask(node.cpus));
    if (find_attribute(element.attributes, "arch") == nullptr) {
      double fastest = 0;
      for (const LinkIndex l : topology_.links_from(index)) {
        const Link& link = topology_.link(l);
        if (link.type != LinkType::kSmp) continue;
        fastest = std::max(fastest, link.nccl_model.value_or(link.capacity));
      }
      describe(element, cpu_with_smp(fastest > 0 ? fastest : 22));
      note("the CPU's vendor, family and model are chosen by the rate between sockets");
    }
    std::map<std::string, Element> holders;
    for (const NodeIndex child : children_[index]) {
      const std::string* holder = find_attribute(topology_.node(child).attributes, "holder");
      if (is_bare_nic(child) && holder != nullptr) {
        const auto [nic, fresh] = holders.try_emplace(*holder, nic_element(child));
        if (!fresh) {
          nic->second.children.push_back(nic_element(child).children.at(0));
        }
      } else {
        add_child(element, child);
      }
    }
    for (auto& [holder, nic] : holders) element.children.push_back(std::move(nic));
    return element;
  }

  static void describe(Element& element, const CpuIdentity& cpu) {
    element.set("arch", cpu.arch);
    if (cpu.vendor.empty()) return;
    element.set("vendor", cpu.vendor);
    element.set("familyid", fmt::format("{}", cpu.family));
    element.set("modelid", fmt::format("{}", cpu.model));
  }

  Element invented_cpu() {
    note("no CPU is described: one is invented");
    Element element{"cpu", {{"numaid", "0"}}};
    describe(element, cpu_with_smp(22));
    return element;
  }

  void add_child(Element& to, NodeIndex index) {
    const Node& node = topology_.node(index);
    if (is_bare_nic(index)) {
      to.children.push_back(nic_element(index));
      return;
    }
    if (node.kind == NodeKind::kCpu || node.kind == NodeKind::kNetwork) return;
    const bool device = node.kind == NodeKind::kGpu || node.kind == NodeKind::kNic;
    if (device && !children_[index].empty()) {
      throw Error(Errc::kInvalidArgument, "{}: devices hang below {} by PCIe", topology_.name(),
                  node.id);
    }
    Element element{"pci", {{"busid", bus_ids_[index]}}};
    for (const auto& [key, value] : those_of(node.attributes, "")) {
      if (key != "net" && key != "holder" && key != "host_bridge") element.set(key, value);
    }
    set_link(element, index);
    if (node.kind == NodeKind::kGpu) {
      element.set("class", "0x030200");
      element.children.push_back(gpu_element(index));
    } else if (node.kind == NodeKind::kNic) {
      element.set("class", "0x020000");
      element.children.push_back(nic_element(index));
    } else {
      element.set("class", node.kind == NodeKind::kNvSwitch ? "0x068000" : "0x060400");
    }
    // The ports of one card share its <nic>.
    Element card{"nic"};
    for (const NodeIndex child : children_[index]) {
      if (is_bare_nic(child)) {
        Element port = nic_element(child);
        card.attributes = port.attributes;
        std::move(port.children.begin(), port.children.end(), std::back_inserter(card.children));
      } else {
        add_child(element, child);
      }
    }
    if (!card.children.empty()) element.children.push_back(std::move(card));
    for (const LinkIndex l : topology_.links_from(index)) {
      const Link& link = topology_.link(l);
      if (find_attribute(link.attributes, "pcilink") == nullptr || !here(link.destination))
        continue;
      element.children.push_back({"pcilink", {{"target", bus_ids_[link.destination]}}});
    }
    std::erase_if(element.children, [](const Element& child) {
      return child.name == "pci" && !holds_a_device(child);
    });
    to.children.push_back(std::move(element));
  }

  void set_link(Element& element, NodeIndex index) {
    const std::optional<LinkIndex> found =
        parent_[index] == kNone ? std::nullopt
                                : topology_.find_link(index, parent_[index], LinkType::kPcie);
    PcieShape shape{4, 16};
    if (found) {
      const Link& link = topology_.link(*found);
      shape = link.nominal ? pcie_shape(*link.nominal) : pcie_shape(link.capacity * 1.31);
      if (link.gen) shape.gen = *link.gen;
      if (link.width) shape.width = *link.width;
    }
    element.set("link_speed", std::string(pcie_link_speed(shape.gen)));
    element.set("link_width", fmt::format("{}", shape.width));
  }

  Element gpu_element(NodeIndex index) {
    const Node& node = topology_.node(index);
    Element element{"gpu", those_of(node.attributes, "gpu.")};
    const std::string number = free_number(index);  // also finds numbers that are there twice
    // Unknown attributes are left out: NCCL fills them in from the GPU, but trusts the ones that
    // are there.
    if (find_attribute(element.attributes, "dev") == nullptr) {
      element.set("dev", number);
    }
    if (find_attribute(element.attributes, "gcn") == nullptr) {
      const std::optional<int> known = compute_capability(node.model);
      if (known) element.set("sm", fmt::format("{}", *known));
    }
    for (const LinkIndex l : topology_.links_from(index)) add_gpu_link(element, topology_.link(l));
    for (const std::string prefix : {"nvlink.", "xgmi."}) {
      for (const auto& [target, value] : those_of(node.attributes, prefix)) {
        const std::size_t space = value.find(' ');
        if (space == std::string::npos) continue;
        element.children.push_back({prefix.substr(0, prefix.size() - 1),
                                    {{"target", target},
                                     {"count", value.substr(0, space)},
                                     {"tclass", value.substr(space + 1)}}});
      }
    }
    return element;
  }

  void add_gpu_link(Element& to, const Link& link) {
    const bool nvlink = link.type == LinkType::kNvlink;
    if (link.type == LinkType::kC2c) {
      const int lanes = link.lanes.value_or(1);
      const std::string* bw = find_attribute(link.attributes, "bw");
      to.children.push_back(
          {"c2c",
           {{"bw", bw != nullptr ? *bw : fmt::format("{:.0f}", link.capacity * 1000 / lanes)},
            {"count", fmt::format("{}", lanes)}}});
      return;
    }
    if (!nvlink && link.type != LinkType::kXgmi) return;
    const Node& target = topology_.node(link.destination);
    const std::string* tclass = find_attribute(link.attributes, "tclass");
    std::string target_id = bus_ids_[link.destination];
    std::string known_class;
    if (!here(link.destination)) {
      note("links of the GPU fabric to other hosts are left out");
      return;
    }
    switch (target.kind) {
      case NodeKind::kGpu: known_class = nvlink ? "0x030200" : "0x038000"; break;
      case NodeKind::kNvSwitch: known_class = "0x068000"; break;
      case NodeKind::kCpu: {
        known_class = "0x068001";
        const std::string* bridge = find_attribute(link.attributes, "target");
        target_id = bridge != nullptr ? *bridge : "0000:00:00.0";
        break;
      }
      case NodeKind::kPcieSwitch:
      case NodeKind::kNic:
      case NodeKind::kNetwork:
        note(fmt::format("the {} link to {} is left out: the form has none to a {}",
                         name(link.type), target.id, name(target.kind)));
        return;
    }
    const double lane = topology_.description().lane_gbps.value_or(nvlink ? 25 : 50);
    const int lanes =
        link.lanes.value_or(std::max(1, static_cast<int>(std::lround(link.capacity / lane))));
    to.children.push_back({nvlink ? "nvlink" : "xgmi",
                           {{"target", target_id},
                            {"count", fmt::format("{}", lanes)},
                            {"tclass", tclass != nullptr ? *tclass : known_class}}});
  }

  Element nic_element(NodeIndex index) {
    const Node& node = topology_.node(index);
    Element element{"nic", those_of(node.attributes, "nic.")};
    const std::string* none = find_attribute(node.attributes, "net");
    if (none != nullptr && *none == "none") return element;
    Element net{"net", {{"name", node.device.empty() ? node.id : node.device}}};
    for (const auto& [key, value] : those_of(node.attributes, "net.")) net.set(key, value);
    if (find_attribute(net.attributes, "dev") == nullptr) {
      const int number = nic_number(index);
      net.set("dev", fmt::format("{}", number));
      if (node.net_gbps) net.set("speed", fmt::format("{:.0f}", *node.net_gbps * 8000));
      net.set("port", "1");
      net.set("guid", fmt::format("{:#x}", 0xa0 + number));
    }
    element.children.push_back(std::move(net));
    return element;
  }

  /// The number of a GPU that has none: the first that no other has, in the order of ranks.
  [[nodiscard]] std::string free_number(NodeIndex gpu) const {
    std::set<std::string> taken;
    std::vector<NodeIndex> without;
    for (const NodeIndex other : topology_.gpus()) {
      if (!here(other)) continue;
      const std::string* dev = find_attribute(topology_.node(other).attributes, "gpu.dev");
      if (dev == nullptr) {
        without.push_back(other);
      } else if (!taken.insert(*dev).second) {
        throw Error(Errc::kInvalidArgument, "{}: two GPUs have number {}", topology_.name(), *dev);
      }
    }
    int number = -1;
    for (const NodeIndex other : without) {
      do ++number;
      while (taken.contains(fmt::format("{}", number)));
      if (other == gpu) break;
    }
    return fmt::format("{}", number);
  }

  [[nodiscard]] int nic_number(NodeIndex nic) const {
    int number = 0;
    for (NodeIndex i = 0; i < nic; ++i) {
      if (here(i) && topology_.node(i).kind == NodeKind::kNic) ++number;
    }
    return number;
  }

  void note_what_is_lost() {
    for (const Link& link : topology_.links()) {
      const NodeKind from = topology_.node(link.source).kind;
      const NodeKind to = topology_.node(link.destination).kind;
      if (!here(link.source)) continue;
      if (from == NodeKind::kNvSwitch && to == NodeKind::kNvSwitch) {
        note("links between NVSwitches are left out: NCCL takes all of a host for one crossbar");
      }
      if (link.type == LinkType::kNet) note("the network is not part of the form");
      if (link.type == LinkType::kNtb || link.type == LinkType::kEthernet) {
        note(fmt::format("{} links are left out", name(link.type)));
      }
    }
    if (topology_.hosts() > 1) note("other hosts are left out: the form holds one");
  }

  const Topology& topology_;
  int host_;
  std::vector<NodeIndex> cpus_;
  std::vector<NodeIndex> parent_;
  std::vector<std::vector<NodeIndex>> children_;
  std::vector<NodeIndex> unattached_;
  std::vector<std::string> bus_ids_;
  std::vector<std::string> notes_;
};

}  // namespace

NcclXml write_nccl_xml(const Topology& topology, int host) { return Writer(topology, host).run(); }

}  // namespace ropewalk::topology
