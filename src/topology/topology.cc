#include "topology/topology.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <tuple>
#include <unordered_set>

#include "core/error.h"

namespace ropewalk::topology {
namespace {

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw Error(Errc::kInvalidArgument, "{}: {}", where, what);
}

bool is_word(std::string_view text) {
  return !text.empty() && text.size() <= kMaxIdBytes &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return c > ' ' && c < 0x7f && c != '"' && c != '\\'; });
}

void check_amount(const std::string& where, double value, double low, double high) {
  if (!std::isfinite(value)) refuse(where, "must be finite");
  if (value < low || value > high) {
    refuse(where, fmt::format("{} is not between {} and {}", value, low, high));
  }
}

void check_number(const std::string& where, const std::optional<int>& value, int low, int high) {
  if (value && (*value < low || *value > high)) {
    refuse(where, fmt::format("{} is not between {} and {}", *value, low, high));
  }
}

void check_node(const Node& node, const std::string& where, int hosts) {
  if (!is_word(node.id)) {
    refuse(where + ".id",
           fmt::format("must be 1 to {} printable ASCII characters without spaces, quotes and "
                       "backslashes",
                       kMaxIdBytes));
  }
  const int lowest = node.kind == NodeKind::kNetwork ? -1 : 0;
  if (node.host < lowest || node.host >= hosts) {
    refuse(where + ".host", fmt::format("{} ({}): there are {} hosts", node.host, node.id, hosts));
  }
  if (node.kind == NodeKind::kGpu && node.rank < 0) {
    refuse(where + ".rank", fmt::format("GPU {} has none, or a negative one", node.id));
  }
  if (node.kind != NodeKind::kGpu && node.rank != -1) {
    refuse(where + ".rank", fmt::format("{} is no GPU: only GPUs have ranks", node.id));
  }
  check_number(where + ".numa", node.numa, -1, 65535);
  check_number(where + ".package", node.package, 0, 1 << 20);
  check_number(where + ".board", node.board, 0, 1 << 20);
  if (node.net_gbps) {
    if (node.kind != NodeKind::kNic) {
      refuse(where + ".net_gbps", fmt::format("{} is no NIC: only NICs have a line rate", node.id));
    }
    check_amount(where + ".net_gbps", *node.net_gbps, kMinCapacity, kMaxCapacity);
  }
}

void check_link(const Link& link, const std::string& where, const std::vector<Node>& nodes) {
  if (link.source >= nodes.size()) refuse(where + ".src", "no such node");
  if (link.destination >= nodes.size()) refuse(where + ".dst", "no such node");
  if (link.source == link.destination) {
    refuse(where, fmt::format("leads from {} to itself", nodes[link.source].id));
  }
  check_amount(where + ".capacity", link.capacity, kMinCapacity, kMaxCapacity);
  if (link.latency_us) check_amount(where + ".latency_us", *link.latency_us, 0, kMaxLatencyUs);
  if (link.nominal) check_amount(where + ".nominal", *link.nominal, kMinCapacity, kMaxCapacity);
  if (link.effective) {
    check_amount(where + ".effective", *link.effective, kMinCapacity, kMaxCapacity);
  }
  if (link.nccl_model) {
    check_amount(where + ".nccl_model", *link.nccl_model, kMinCapacity, kMaxCapacity);
  }
  check_number(where + ".lanes", link.lanes, 1, 4096);
  check_number(where + ".gen", link.gen, 1, 15);
  check_number(where + ".width", link.width, 1, 64);
}

void check_planes(const std::vector<Plane>& planes) {
  std::unordered_set<std::string> names;
  for (const Plane& plane : planes) {
    const std::string where = "planes." + plane.name;
    if (!is_word(plane.name)) refuse("planes", "a plane's name is empty, long, or has spaces");
    if (!names.insert(plane.name).second) refuse(where, "twice");
    if (plane.types.empty()) refuse(where, "has no link types");
    if (std::set<LinkType>(plane.types.begin(), plane.types.end()).size() != plane.types.size()) {
      refuse(where, "has a link type twice");
    }
  }
}

void check_sizes(const Description& description) {
  if (description.hosts < 1 || static_cast<std::size_t>(description.hosts) > kMaxNodes) {
    refuse("hosts", fmt::format("{} is not between 1 and {}", description.hosts, kMaxNodes));
  }
  if (description.nodes.size() > kMaxNodes) {
    refuse("nodes", fmt::format("{}, and {} is the limit", description.nodes.size(), kMaxNodes));
  }
  if (description.links.size() > kMaxLinks) {
    refuse("links", fmt::format("{}, and {} is the limit", description.links.size(), kMaxLinks));
  }
  if (description.lane_gbps) {
    check_amount("lane_gbps", *description.lane_gbps, kMinCapacity, kMaxCapacity);
  }
}

/// GPUs by rank. Ranks are known to be non-negative.
std::vector<NodeIndex> order_gpus(const std::vector<Node>& nodes) {
  const auto count = static_cast<std::size_t>(std::count_if(
      nodes.begin(), nodes.end(), [](const Node& node) { return node.kind == NodeKind::kGpu; }));
  constexpr NodeIndex kNone = static_cast<NodeIndex>(-1);
  std::vector<NodeIndex> gpus(count, kNone);
  for (NodeIndex i = 0; i < nodes.size(); ++i) {
    if (nodes[i].kind != NodeKind::kGpu) continue;
    const auto rank = static_cast<std::size_t>(nodes[i].rank);
    const std::string where = fmt::format("nodes[{}].rank", i);
    if (rank >= count) {
      refuse(where, fmt::format("{} ({}): ranks of {} GPUs are 0 to {}", rank, nodes[i].id, count,
                                count - 1));
    }
    if (gpus[rank] != kNone) {
      refuse(where, fmt::format("{} is of {} and of {}", rank, nodes[gpus[rank]].id, nodes[i].id));
    }
    gpus[rank] = i;
  }
  return gpus;
}

using LinkKey = std::tuple<NodeIndex, NodeIndex, LinkType>;

/// Which nodes `start` reaches, forwards or backwards.
std::vector<bool> reached(const Topology& topology, NodeIndex start, bool forwards) {
  std::vector<bool> seen(topology.nodes().size(), false);
  std::vector<NodeIndex> open{start};
  seen[start] = true;
  while (!open.empty()) {
    const NodeIndex at = open.back();
    open.pop_back();
    for (const LinkIndex l : forwards ? topology.links_from(at) : topology.links_to(at)) {
      const NodeIndex next = forwards ? topology.link(l).destination : topology.link(l).source;
      if (!seen[next]) {
        seen[next] = true;
        open.push_back(next);
      }
    }
  }
  return seen;
}

/// The description with those nodes (and their links) that `keep` marks.
Description reduced(const Description& from, const std::vector<bool>& keep) {
  Description result = from;
  result.nodes.clear();
  result.links.clear();
  std::vector<NodeIndex> new_index(from.nodes.size(), 0);
  for (NodeIndex i = 0; i < from.nodes.size(); ++i) {
    if (!keep[i]) continue;
    new_index[i] = result.nodes.size();
    result.nodes.push_back(from.nodes[i]);
  }
  for (const Link& link : from.links) {
    if (!keep[link.source] || !keep[link.destination]) continue;
    result.links.push_back(link);
    result.links.back().source = new_index[link.source];
    result.links.back().destination = new_index[link.destination];
  }
  return result;
}

}  // namespace

std::string_view name(NodeKind kind) noexcept {
  switch (kind) {
    case NodeKind::kGpu: return "gpu";
    case NodeKind::kNvSwitch: return "nvswitch";
    case NodeKind::kPcieSwitch: return "pcie_switch";
    case NodeKind::kCpu: return "cpu";
    case NodeKind::kNic: return "nic";
    case NodeKind::kNetwork: return "network";
  }
  return "unknown";
}

std::string_view name(LinkType type) noexcept {
  switch (type) {
    case LinkType::kNvlink: return "nvlink";
    case LinkType::kXgmi: return "xgmi";
    case LinkType::kC2c: return "c2c";
    case LinkType::kPcie: return "pcie";
    case LinkType::kSmp: return "smp";
    case LinkType::kNet: return "net";
    case LinkType::kNtb: return "ntb";
    case LinkType::kEthernet: return "ethernet";
  }
  return "unknown";
}

const std::vector<NodeKind>& all_node_kinds() {
  static const std::vector<NodeKind> kKinds{NodeKind::kGpu,        NodeKind::kNvSwitch,
                                            NodeKind::kPcieSwitch, NodeKind::kCpu,
                                            NodeKind::kNic,        NodeKind::kNetwork};
  return kKinds;
}

const std::vector<LinkType>& all_link_types() {
  static const std::vector<LinkType> kTypes{LinkType::kNvlink, LinkType::kXgmi,    LinkType::kC2c,
                                            LinkType::kPcie,   LinkType::kSmp,     LinkType::kNet,
                                            LinkType::kNtb,    LinkType::kEthernet};
  return kTypes;
}

std::optional<NodeKind> parse_node_kind(std::string_view word) noexcept {
  for (const NodeKind kind : all_node_kinds()) {
    if (name(kind) == word) return kind;
  }
  return std::nullopt;
}

std::optional<LinkType> parse_link_type(std::string_view word) noexcept {
  for (const LinkType type : all_link_types()) {
    if (name(type) == word) return type;
  }
  return std::nullopt;
}

Topology::Topology(Description description) : description_(std::move(description)) {
  check_sizes(description_);
  check_planes(description_.planes);
  const std::vector<Node>& all = description_.nodes;
  by_id_.reserve(all.size());
  for (NodeIndex i = 0; i < all.size(); ++i) {
    check_node(all[i], fmt::format("nodes[{}]", i), description_.hosts);
    const auto [other, fresh] = by_id_.emplace(all[i].id, i);
    if (!fresh) {
      refuse(fmt::format("nodes[{}].id", i),
             fmt::format("\"{}\" is also the id of nodes[{}]", all[i].id, other->second));
    }
  }
  gpus_ = order_gpus(all);

  out_.resize(all.size());
  in_.resize(all.size());
  std::vector<std::pair<LinkKey, LinkIndex>> keys;
  keys.reserve(links().size());
  for (LinkIndex l = 0; l < links().size(); ++l) {
    const Link& link = description_.links[l];
    check_link(link, fmt::format("links[{}]", l), all);
    keys.push_back({{link.source, link.destination, link.type}, l});
    out_[link.source].push_back(l);
    in_[link.destination].push_back(l);
  }
  std::sort(keys.begin(), keys.end());
  for (std::size_t i = 1; i < keys.size(); ++i) {
    if (keys[i].first != keys[i - 1].first) continue;
    const Link& link = description_.links[keys[i].second];
    refuse(fmt::format("links[{}]", keys[i].second),
           fmt::format("another {} link from {} to {} after links[{}]", topology::name(link.type),
                       all[link.source].id, all[link.destination].id, keys[i - 1].second));
  }
  symmetric_ = std::all_of(keys.begin(), keys.end(), [&](const auto& entry) {
    const auto& [source, destination, type] = entry.first;
    const std::pair<LinkKey, LinkIndex> twin{{destination, source, type}, 0};
    const auto found = std::lower_bound(keys.begin(), keys.end(), twin);
    return found != keys.end() && found->first == twin.first &&
           link(found->second).capacity == link(entry.second).capacity;
  });
}

std::vector<NodeIndex> Topology::nodes_of(NodeKind kind) const {
  std::vector<NodeIndex> found;
  for (NodeIndex i = 0; i < nodes().size(); ++i) {
    if (nodes()[i].kind == kind) found.push_back(i);
  }
  return found;
}

std::optional<NodeIndex> Topology::find(std::string_view id) const {
  const auto found = by_id_.find(std::string(id));
  if (found == by_id_.end()) return std::nullopt;
  return found->second;
}

NodeIndex Topology::at(std::string_view id) const {
  const std::optional<NodeIndex> found = find(id);
  if (!found) throw Error(Errc::kInvalidArgument, "{}: there is no node \"{}\"", name(), id);
  return *found;
}

std::optional<LinkIndex> Topology::find_link(NodeIndex source, NodeIndex destination,
                                             LinkType type) const {
  for (const LinkIndex l : links_from(source)) {
    if (link(l).destination == destination && link(l).type == type) return l;
  }
  return std::nullopt;
}

Topology Topology::plane(std::string_view plane_name) const {
  const auto wanted = std::find_if(planes().begin(), planes().end(),
                                   [&](const Plane& plane) { return plane.name == plane_name; });
  if (wanted == planes().end()) {
    std::vector<std::string> names;
    for (const Plane& plane : planes()) names.push_back(plane.name);
    throw Error(Errc::kInvalidArgument, "{} has no plane \"{}\"; it has {}", name(), plane_name,
                names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
  }
  Description result = description_;
  result.planes = {*wanted};
  std::erase_if(result.links, [&](const Link& link) {
    return std::find(wanted->types.begin(), wanted->types.end(), link.type) == wanted->types.end();
  });
  return Topology(std::move(result));
}

Topology Topology::with_gpus(const std::vector<int>& ranks) const {
  if (ranks.empty()) throw Error(Errc::kInvalidArgument, "{}: no GPU is asked for", name());
  std::vector<int> renumbered(gpus_.size(), -1);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const int rank = ranks[i];
    if (rank < 0 || static_cast<std::size_t>(rank) >= gpus_.size()) {
      throw Error(Errc::kInvalidArgument, "GPU {} is asked for; {} has {} GPUs, numbered from 0",
                  rank, name(), gpus_.size());
    }
    int& number = renumbered[static_cast<std::size_t>(rank)];
    if (number != -1) throw Error(Errc::kInvalidArgument, "GPU {} is asked for twice", rank);
    number = static_cast<int>(i);
  }
  std::vector<bool> keep(nodes().size(), true);
  for (std::size_t rank = 0; rank < gpus_.size(); ++rank) {
    keep[gpus_[rank]] = renumbered[rank] != -1;
  }
  Description result = reduced(description_, keep);
  for (Node& node : result.nodes) {
    if (node.rank >= 0) node.rank = renumbered[static_cast<std::size_t>(node.rank)];
  }
  return Topology(std::move(result));
}

Topology Topology::without_dead_ends() const {
  std::vector<bool> keep(nodes().size(), true);
  const auto neighbours = [&](NodeIndex node) {
    std::set<NodeIndex> found;
    for (const LinkIndex l : links_from(node)) {
      if (keep[link(l).destination]) found.insert(link(l).destination);
    }
    for (const LinkIndex l : links_to(node)) {
      if (keep[link(l).source]) found.insert(link(l).source);
    }
    return found;
  };
  std::vector<NodeIndex> open(nodes().size());
  for (NodeIndex i = 0; i < open.size(); ++i) open[i] = i;
  while (!open.empty()) {
    const NodeIndex node = open.back();
    open.pop_back();
    if (!keep[node] || nodes()[node].kind == NodeKind::kGpu) continue;
    const std::set<NodeIndex> around = neighbours(node);
    if (around.size() > 1) continue;
    keep[node] = false;
    open.insert(open.end(), around.begin(), around.end());
  }
  return Topology(reduced(description_, keep));
}

std::vector<std::string> Topology::unreachable_gpus() const {
  std::vector<std::string> found;
  if (gpus_.empty()) return found;
  const std::vector<bool> there = reached(*this, gpus_[0], true);
  const std::vector<bool> back = reached(*this, gpus_[0], false);
  for (const NodeIndex gpu : gpus_) {
    if (!there[gpu] || !back[gpu]) found.push_back(node(gpu).id);
  }
  return found;
}

void require_connected(const Topology& topology) {
  const std::size_t count = topology.gpus().size();
  if (count < 2) {
    throw Error(Errc::kInvalidArgument, "{} has {}: a collective needs at least 2", topology.name(),
                count == 0 ? "no GPU" : "one GPU");
  }
  const std::vector<std::string> lost = topology.unreachable_gpus();
  if (lost.empty()) return;
  throw Error(Errc::kInvalidArgument, "{}: no path between {} and {}", topology.name(),
              topology.node(topology.gpus()[0]).id, fmt::join(lost, ", "));
}

double default_latency_us(LinkType type) noexcept {
  switch (type) {
    case LinkType::kNvlink: return 0.7;
    case LinkType::kXgmi: return 0.8;
    case LinkType::kC2c: return 0.6;
    case LinkType::kPcie: return 0.6;
    case LinkType::kSmp: return 0.3;
    case LinkType::kNet: return 2.5;
    case LinkType::kNtb: return 0.7;
    case LinkType::kEthernet: return 20;
  }
  return 1;
}

double latency_us(const Link& link) noexcept {
  return link.latency_us.value_or(default_latency_us(link.type));
}

}  // namespace ropewalk::topology
