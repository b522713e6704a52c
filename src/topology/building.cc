#include "topology/building.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdint>
#include <set>

#include "core/error.h"
#include "topology/rates.h"

namespace ropewalk::topology {
namespace {

constexpr std::size_t kMaxCpus = 65536;

std::string_view id_word(NodeKind kind) {
  switch (kind) {
    case NodeKind::kGpu: return "gpu";
    case NodeKind::kNvSwitch: return "nvs";
    case NodeKind::kPcieSwitch: return "plx";
    case NodeKind::kCpu: return "cpu";
    case NodeKind::kNic: return "nic";
    case NodeKind::kNetwork: return "net";
  }
  return "node";
}

std::size_t parse_cpu(std::string_view text, std::string_view whole) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value >= kMaxCpus) {
    throw Error(Errc::kInvalidArgument, "\"{}\" is not a list of CPUs", whole.substr(0, 64));
  }
  return value;
}

}  // namespace

NodeIndex Builder::add(Node node) {
  if (node.id.empty()) {
    const std::string prefix = made_.hosts > 1 && node.kind != NodeKind::kNetwork
                                   ? fmt::format("h{}.", node.host)
                                   : std::string();
    const std::string stem = prefix + std::string(id_word(node.kind));
    do {
      node.id = fmt::format("{}{}", stem, counts_[stem]++);
    } while (ids_.contains(node.id));
  }
  ids_.emplace(node.id, made_.nodes.size());
  made_.nodes.push_back(std::move(node));
  return made_.nodes.size() - 1;
}

void Builder::link(Link link) {
  const auto [known, fresh] =
      links_.emplace(std::tuple(link.source, link.destination, link.type), made_.links.size());
  if (fresh) {
    made_.links.push_back(std::move(link));
    return;
  }
  Link& same = made_.links[known->second];
  same.capacity += link.capacity;
  if (same.effective && link.effective) *same.effective += *link.effective;
  if (same.nominal && link.nominal) *same.nominal += *link.nominal;
  if (same.lanes && link.lanes) *same.lanes += *link.lanes;
}

void Builder::join(const Link& there) {
  Link back = there;
  std::swap(back.source, back.destination);
  link(there);
  link(std::move(back));
}

void Builder::join_pcie(NodeIndex lower, NodeIndex upper, int gen, int width) {
  Link link{.source = lower, .destination = upper, .type = LinkType::kPcie};
  const bool known = gen > 0 && width > 0;
  link.gen = gen > 0 ? gen : 3;
  link.width = width > 0 ? width : 16;
  link.capacity = pcie_capacity(*link.gen, *link.width);
  link.nominal = pcie_nominal(*link.gen, *link.width);
  if (!known) link.assumed = true;
  join(link);
}

Description Builder::finish() && {
  std::set<int> taken;
  for (const Node& node : made_.nodes) taken.insert(node.rank);
  int next = 0;
  for (Node& node : made_.nodes) {
    if (node.kind != NodeKind::kGpu || node.rank >= 0) continue;
    while (taken.contains(next)) ++next;
    node.rank = next++;
  }
  if (made_.planes.empty()) made_.planes = standard_planes(made_);
  return std::move(made_);
}

std::vector<Plane> standard_planes(const Description& description) {
  std::set<LinkType> present;
  for (const Link& link : description.links) present.insert(link.type);
  const auto those_of = [&](std::initializer_list<LinkType> wanted) {
    std::vector<LinkType> found;
    for (const LinkType type : wanted) {
      if (present.contains(type)) found.push_back(type);
    }
    return found;
  };
  std::vector<Plane> planes;
  for (const LinkType type : {LinkType::kNvlink, LinkType::kXgmi}) {
    if (present.contains(type)) planes.push_back({std::string(name(type)), {type}});
  }
  if (present.contains(LinkType::kPcie)) {
    planes.push_back({"pcie", those_of({LinkType::kPcie, LinkType::kSmp})});
  }
  if (present.contains(LinkType::kNvlink) && present.contains(LinkType::kNet)) {
    planes.push_back(
        {"nvlink+net", those_of({LinkType::kNvlink, LinkType::kPcie, LinkType::kNet})});
  }
  for (const LinkType type : {LinkType::kNtb, LinkType::kEthernet}) {
    if (present.contains(type)) {
      planes.push_back({std::string(name(type)), those_of({LinkType::kPcie, type})});
    }
  }
  if (!present.empty()) planes.push_back({"all", {present.begin(), present.end()}});
  return planes;
}

std::string cpu_mask(std::string_view cpu_list) {
  std::vector<std::uint32_t> words(1, 0);
  std::string_view rest = cpu_list;
  while (!rest.empty()) {
    const std::string_view range = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), range.size() + 1));
    const std::size_t dash = range.find('-');
    const std::size_t first = parse_cpu(range.substr(0, dash), cpu_list);
    const std::size_t last =
        dash == std::string_view::npos ? first : parse_cpu(range.substr(dash + 1), cpu_list);
    if (last / 32 >= words.size()) words.resize(last / 32 + 1, 0);
    for (std::size_t cpu = first; cpu <= last; ++cpu) words[cpu / 32] |= 1U << (cpu % 32);
  }
  std::string out;
  for (auto word = words.rbegin(); word != words.rend(); ++word) {
    out += fmt::format("{}{:08x}", out.empty() ? "" : ",", *word);
  }
  return out;
}

std::string cpu_list(std::string_view cpu_mask) {
  std::vector<std::uint32_t> words;
  std::string_view rest = cpu_mask;
  while (!rest.empty()) {
    const std::string_view group = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), group.size() + 1));
    std::uint32_t value = 0;
    std::string_view digits = group;
    if (digits.starts_with("0x")) digits.remove_prefix(2);
    // hwloc leaves groups of zeros empty.
    const auto [end, error] =
        digits.empty() ? std::from_chars_result{digits.data(), std::errc()}
                       : std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (error != std::errc() || end != digits.data() + digits.size() ||
        words.size() >= kMaxCpus / 32) {
      throw Error(Errc::kInvalidArgument, "\"{}\" is not a mask of CPUs", cpu_mask.substr(0, 64));
    }
    words.push_back(value);
  }
  std::reverse(words.begin(), words.end());
  std::string out;
  const std::size_t count = words.size() * 32;
  const auto holds = [&](std::size_t cpu) {
    return cpu < count && (words[cpu / 32] >> (cpu % 32) & 1U) != 0;
  };
  for (std::size_t cpu = 0; cpu < count; ++cpu) {
    if (!holds(cpu)) continue;
    const std::size_t first = cpu;
    while (holds(cpu + 1)) ++cpu;
    if (!out.empty()) out += ',';
    out += first == cpu ? fmt::format("{}", first) : fmt::format("{}-{}", first, cpu);
  }
  return out;
}

const std::string* find_attribute(const Attributes& attributes, std::string_view name) {
  for (const auto& [key, value] : attributes) {
    if (key == name) return &value;
  }
  return nullptr;
}

}  // namespace ropewalk::topology
