#include "machine/machine.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <tuple>

#include "bootstrap/agreed_error.h"
#include "core/digest.h"
#include "topology/json.h"
#include "topology/named.h"

namespace ropewalk::machine {
namespace {

// A rank's record of its setting TOPOLOGY.
struct GivenTopology {
  enum class State : std::uint8_t { kNone, kRead, kFailed };
  State state = State::kNone;
  Errc code = Errc::kInternal;  // kFailed
  std::uint64_t digest = 0;     // kRead
  std::array<char, 128> name{};
  std::array<char, 384> reason{};  // kFailed

  [[nodiscard]] std::string text(bool with_digest) const {
    if (state == State::kNone) return "none";
    return with_digest ? fmt::format("{} with contents {:016x}", name.data(), digest) : name.data();
  }
};

template <std::size_t kSize>
void put(std::array<char, kSize>& to, std::string_view text) {
  text.copy(to.data(), to.size() - 1);
}

std::optional<topology::Topology> read(const std::string& name, GivenTopology& said) {
  put(said.name, name);
  try {
    topology::Topology whole = topology::named(name);
    said.digest = digest(topology::write_json(whole));
    said.state = GivenTopology::State::kRead;
    return whole;
  } catch (const Error& error) {
    said.state = GivenTopology::State::kFailed;
    said.code = error.code();
    put(said.reason, error.what());
    return std::nullopt;
  }
}

void require_equal(const std::vector<GivenTopology>& all, int rank) {
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].state == GivenTopology::State::kFailed) {
      throw bootstrap::AgreedError(all[r].code, "TOPOLOGY of rank {}: {}", r, all[r].reason.data());
    }
  }
  const GivenTopology& mine = all[static_cast<std::size_t>(rank)];
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].state == mine.state && all[r].digest == mine.digest) continue;
    const bool same_name = all[r].name == mine.name;
    throw bootstrap::AgreedError(Errc::kInvalidUsage,
                                 "setting TOPOLOGY differs: rank {} has {}, rank {} has {}", rank,
                                 mine.text(same_name), r, all[r].text(same_name));
  }
}

std::string count_of(std::size_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string models(const topology::Topology& machine) {
  std::set<std::string> found;
  for (const topology::NodeIndex gpu : machine.gpus()) {
    if (!machine.node(gpu).model.empty()) found.insert(machine.node(gpu).model);
  }
  return found.empty() ? std::string() : fmt::format(" ({})", fmt::join(found, ", "));
}

std::string links_by_class(const topology::Topology& machine) {
  struct Rates {
    std::size_t count = 0;
    double least = 0;
    double most = 0;
  };
  std::map<topology::LinkType, Rates> by_class;
  for (const topology::Link& link : machine.links()) {
    Rates& rates = by_class[link.type];
    rates.least = rates.count == 0 ? link.capacity : std::min(rates.least, link.capacity);
    rates.most = std::max(rates.most, link.capacity);
    ++rates.count;
  }
  std::vector<std::string> parts;
  for (const auto& [type, rates] : by_class) {
    parts.push_back(rates.least == rates.most
                        ? fmt::format("{} {} of {:.4g}", rates.count, name(type), rates.least)
                        : fmt::format("{} {} of {:.4g} to {:.4g}", rates.count, name(type),
                                      rates.least, rates.most));
  }
  if (parts.empty()) return "links: none";
  return fmt::format("links, each direction: {} GB/s", fmt::join(parts, ", "));
}

// "ranks: 4 on cpu0, 4 on cpu1".
std::string ranks_by_node(const Machine& machine) {
  constexpr std::size_t kMostNodes = 8;
  std::map<topology::NodeIndex, int> ranks;
  for (const topology::NodeIndex node : machine.node_of_rank) ++ranks[node];
  std::vector<std::string> parts;
  for (const auto& [node, count] : ranks) {
    if (parts.size() == kMostNodes) {
      parts.push_back(fmt::format("others on {} more", ranks.size() - kMostNodes));
      break;
    }
    parts.push_back(fmt::format("{} on {}", count, machine.topology.node(node).id));
  }
  return fmt::format("ranks: {}", fmt::join(parts, ", "));
}

}  // namespace

std::string fingerprint(const Machine& machine) {
  return digest_text(topology::write_json(machine.topology));
}

std::vector<int> ring_order(const Machine& machine) {
  std::vector<int> order(machine.node_of_rank.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const topology::Node& node = machine.topology.node(machine.node_of_rank[r]);
    const int core = machine.core_of_rank.empty() ? -1 : machine.core_of_rank[r];
    return std::tuple(node.host, node.numa.value_or(-1), core, rank);
  };
  std::ranges::sort(order, {}, key);
  return order;
}

std::vector<std::string> describe(const Machine& machine) {
  const topology::Topology& whole = machine.topology;
  return {fmt::format("machine {} ({}): {}, {}{}, {}, {}", whole.name(), machine.origin,
                      count_of(static_cast<std::size_t>(whole.hosts()), "host"),
                      count_of(whole.gpus().size(), "GPU"), models(whole),
                      count_of(whole.nodes_of(topology::NodeKind::kCpu).size(), "NUMA node"),
                      count_of(whole.nodes_of(topology::NodeKind::kNic).size(), "NIC")),
          links_by_class(whole), ranks_by_node(machine)};
}

std::shared_ptr<const Machine> find_machine(bootstrap::Bootstrap& bootstrap, const Config& config,
                                            bool given, Deadline deadline) {
  const int size = bootstrap.size();
  if (!given) return nullptr;
  const std::string& name = config.text(Setting::kTopology);
  std::vector<GivenTopology> all(static_cast<std::size_t>(size));
  GivenTopology& mine = all[static_cast<std::size_t>(bootstrap.rank())];
  std::optional<topology::Topology> read_here;
  if (!name.empty()) read_here = read(name, mine);
  bootstrap.all_gather(std::as_writable_bytes(std::span(all)), sizeof(GivenTopology), deadline);
  require_equal(all, bootstrap.rank());
  const topology::Topology& whole = *read_here;
  if (static_cast<int>(whole.gpus().size()) < size) {
    throw bootstrap::AgreedError(Errc::kInvalidArgument,
                                 "TOPOLOGY: {} has {} GPUs, the communicator {} ranks", name,
                                 whole.gpus().size(), size);
  }
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  Machine machine{
      .topology = whole,
      .node_of_rank = {whole.gpus().begin(), whole.gpus().begin() + size},
      .planned = std::make_shared<const topology::Topology>(whole.with_gpus(ranks)),
      .origin = fmt::format("setting TOPOLOGY from {}", config.source(Setting::kTopology)),
      .described = true,
  };
  return std::make_shared<const Machine>(std::move(machine));
}

}  // namespace ropewalk::machine
