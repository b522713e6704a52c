#include "plan/channel_rings.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "plan/device_path.h"
#include "plan/loads.h"
#include "plan/network.h"

namespace ropewalk::plan {
namespace {

using topology::LinkIndex;
using topology::LinkType;
using topology::NodeIndex;
using topology::NodeKind;
using topology::PathClass;

constexpr int kMostChannels = 16;
constexpr std::size_t kMostGpusForAllOrders = 8;

std::vector<NodeIndex> gpus_of(const topology::Topology& topology, int host) {
  std::vector<NodeIndex> gpus;
  for (const NodeIndex gpu : topology.gpus()) {
    if (topology.node(gpu).host == host) gpus.push_back(gpu);
  }
  return gpus;
}

/// How many channels each NIC takes: in proportion to speed, every NIC at least one where that is
/// possible, kMostChannels together.
std::vector<int> shares_of(const std::vector<NicPort>& ports, int wanted) {
  double slowest = std::numeric_limits<double>::max();
  double total = 0;
  for (const NicPort& port : ports) {
    slowest = std::min(slowest, port.gbps);
    total += port.gbps;
  }
  std::vector<int> shares;
  if (wanted <= 0)
    wanted = std::clamp(static_cast<int>(std::lround(total / slowest)), 2, kMostChannels);
  for (const NicPort& port : ports) {
    shares.push_back(static_cast<int>(std::floor(wanted * port.gbps / total + 1e-9)));
  }
  // What rounding left goes to the NICs that would be least loaded by one more.
  while (std::accumulate(shares.begin(), shares.end(), 0) < wanted) {
    std::size_t best = 0;
    for (std::size_t p = 1; p < ports.size(); ++p) {
      if ((shares[p] + 1) / ports[p].gbps < (shares[best] + 1) / ports[best].gbps - 1e-12) best = p;
    }
    ++shares[best];
  }
  return shares;
}

/// Paths between all GPUs of a host, once.
class GpuPaths {
 public:
  GpuPaths(const topology::Topology& topology, const std::vector<NodeIndex>& gpus) {
    for (const NodeIndex from : gpus) {
      auto& row = paths_.emplace_back();
      for (const NodeIndex to : gpus) {
        auto path =
            from == to ? std::optional(DevicePath{}) : nearest_between_gpus(topology, from, to);
        if (!path.has_value()) {
          throw Error(Errc::kInvalidArgument, "{}: no path from {} to {} within their host",
                      topology.name(), topology.node(from).id, topology.node(to).id);
        }
        row.push_back(std::move(*path));
      }
    }
  }
  [[nodiscard]] const DevicePath& between(int from, int to) const {
    return paths_[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  }

 private:
  std::vector<std::vector<DevicePath>> paths_;
};

/// Which links the channels so far use, for choosing the next order.
class Uses {
 public:
  explicit Uses(const topology::Topology& topology) : topology_(topology) {}
  void add(const std::vector<int>& links) {
    for (const int link : links) ++uses_[link];
  }
  /// The busiest of `links` when they are used once more, per GB/s.
  [[nodiscard]] double with(const std::vector<int>& links) const {
    double busiest = 0;
    for (const int link : links) {
      const auto known = uses_.find(link);
      const int count = known == uses_.end() ? 1 : known->second + 1;
      busiest = std::max(busiest, count / topology_.link(static_cast<std::size_t>(link)).capacity);
    }
    return busiest;
  }

 private:
  const topology::Topology& topology_;
  std::map<int, int> uses_;
};

/// Calls `body` for the orders from `first` to `last` that are considered.
template <typename Body>
void for_orders(int gpus, int first, int last, Body&& body) {
  std::vector<int> inner;
  for (int i = 1; i < gpus; ++i) {
    const int gpu = (first + i) % gpus;
    if (gpu != last && gpu != first) inner.push_back(gpu);
  }
  const auto whole = [&] {
    std::vector<int> order = {first};
    order.insert(order.end(), inner.begin(), inner.end());
    if (last != first) order.push_back(last);
    return order;
  };
  body(whole());
  if (static_cast<std::size_t>(gpus) > kMostGpusForAllOrders) return;
  std::sort(inner.begin(), inner.end());
  do {
    body(whole());
  } while (std::next_permutation(inner.begin(), inner.end()));
}

std::vector<int> best_order(int gpus, int first, int last, const GpuPaths& paths,
                            const Uses& uses) {
  std::vector<int> best;
  std::pair<double, int> least{std::numeric_limits<double>::max(), 0};
  for_orders(gpus, first, last, [&](const std::vector<int>& order) {
    std::pair<double, int> found{0, 0};
    for (std::size_t i = 0; i + 1 < order.size(); ++i) {
      const DevicePath& path = paths.between(order[i], order[i + 1]);
      found.first = std::max(found.first, uses.with(path.links));
      found.second += path.distance;
    }
    if (best.empty() || found.first < least.first - 1e-12 ||
        (found.first < least.first + 1e-12 && found.second < least.second)) {
      least = found;
      best = order;
    }
  });
  return best;
}

class Maker {
 public:
  Maker(const topology::Topology& topology, const ChannelRequest& request)
      : topology_(topology), request_(request), uses_(topology) {
    if (request.host < 0 || request.host >= topology.hosts()) {
      throw Error(Errc::kInvalidArgument, "{} has {} hosts, not one with number {}",
                  topology.name(), topology.hosts(), request.host);
    }
    made_.host = request.host;
    made_.rule = request.rule;
    made_.gpus = gpus_of(topology, request.host);
    made_.ports = nic_ports(topology, request.host, request.measured);
    if (made_.gpus.empty()) {
      throw Error(Errc::kInvalidArgument, "{}: host {} has no GPU", topology.name(), request.host);
    }
    if (made_.ports.empty()) {
      throw Error(Errc::kInvalidArgument, "{}: host {} has no NIC that its GPUs reach",
                  topology.name(), request.host);
    }
    if (request.channels < 0 || request.channels > 2 * kMostChannels) {
      throw Error(Errc::kInvalidArgument, "{} channels: must be 0 to {}", request.channels,
                  2 * kMostChannels);
    }
  }

  HostChannels make() {
    if (request_.rule == NicRule::kBalanced) {
      choose_ends();
    } else {
      // One ring in the order of numbers, copied.
      const int n = static_cast<int>(made_.gpus.size());
      const std::vector<int> shares = shares_of(made_.ports, request_.channels);
      ends_.assign(static_cast<std::size_t>(std::accumulate(shares.begin(), shares.end(), 0)),
                   {0, n - 1});
    }
    NicProblem problem;
    problem.ports = made_.ports;
    problem.one_rail = request_.one_rail;
    for (const auto& [first, last] : ends_) problem.channels.push_back({gpu(first), gpu(last)});
    made_.assignment = assign_nics(topology_, problem, request_.rule);
    choose_orders();
    made_.mirrored = is_mirrored();
    return std::move(made_);
  }

 private:
  [[nodiscard]] NodeIndex gpu(int index) const {
    return made_.gpus[static_cast<std::size_t>(index)];
  }

  /// GPUs in the order of their distance to a port; equals by how many ends they have already.
  int nearest_gpu(std::size_t port, bool entry, int but) {
    int best = -1;
    std::tuple<int, int, int> least;
    for (int g = 0; g < static_cast<int>(made_.gpus.size()); ++g) {
      if (g == but) continue;
      const auto path = entry ? nearest_over_pcie(topology_, made_.ports[port].node, gpu(g))
                              : nearest_over_pcie(topology_, gpu(g), made_.ports[port].node);
      if (!path.has_value()) continue;
      const std::tuple<int, int, int> found{path->distance, used_ends_[{g, entry}], g};
      if (best < 0 || found < least) {
        best = g;
        least = found;
      }
    }
    return best;
  }

  void add_ends(std::size_t in, std::size_t out) {
    const bool alone = made_.gpus.size() == 1;
    int first = nearest_gpu(in, true, -1);
    int last = alone ? 0 : nearest_gpu(out, false, first);
    if (first < 0) first = 0;
    if (last < 0) last = alone ? first : (first + 1) % static_cast<int>(made_.gpus.size());
    ++used_ends_[{first, true}];
    ++used_ends_[{last, false}];
    ends_.emplace_back(first, last);
  }

  /// Every NIC as often an entry and an exit as its share says. Where another NIC's GPU is as near
  /// as can be, the ends of a channel are on two NICs, and its mirror image follows it; with one
  /// rail, or where GPUs near the NIC make both ends, they are on one.
  void choose_ends() {
    std::vector<int> left = shares_of(made_.ports, request_.channels);
    const auto next = [&](std::size_t but) {
      std::size_t best = left.size();
      for (std::size_t p = 0; p < left.size(); ++p) {
        if (p != but && left[p] > 0 && (best == left.size() || left[p] > left[best])) best = p;
      }
      return best;
    };
    for (std::size_t in = next(left.size()); in < left.size(); in = next(left.size())) {
      const std::size_t other = next(in);
      const bool pairs = !request_.one_rail && other < left.size() && made_.gpus.size() > 1 &&
                         !two_gpus_are_nearest(in);
      if (pairs) {
        add_ends(in, other);
        // The mirror image has the same ends, exchanged.
        const auto [first, last] = ends_.back();
        ++used_ends_[{last, true}];
        ++used_ends_[{first, false}];
        ends_.emplace_back(last, first);
        --left[in];
        --left[other];
      } else {
        add_ends(in, in);
        --left[in];
      }
    }
  }

  /// Whether both ends of a channel can be as near to the port as its nearest GPU.
  bool two_gpus_are_nearest(std::size_t port) {
    std::vector<int> distances;
    for (const NodeIndex each : made_.gpus) {
      if (const auto path = nearest_over_pcie(topology_, each, made_.ports[port].node)) {
        distances.push_back(path->distance);
      }
    }
    std::sort(distances.begin(), distances.end());
    return distances.size() > 1 && distances[0] == distances[1];
  }

  void choose_orders() {
    const GpuPaths paths(topology_, made_.gpus);
    for (std::size_t c = 0; c < ends_.size(); ++c) {
      const auto [first, last] = ends_[c];
      std::vector<int> order;
      if (request_.rule != NicRule::kBalanced) {
        order.resize(made_.gpus.size());
        std::iota(order.begin(), order.end(), 0);
      } else if (c % 2 == 1 && ends_[c - 1] == std::pair(last, first)) {
        order.assign(made_.channels.back().order.rbegin(), made_.channels.back().order.rend());
      } else {
        order = best_order(static_cast<int>(made_.gpus.size()), first, last, paths, uses_);
      }
      for (std::size_t i = 0; i + 1 < order.size(); ++i) {
        uses_.add(paths.between(order[i], order[i + 1]).links);
      }
      made_.channels.push_back({std::move(order), made_.assignment.channels[c]});
    }
  }

  [[nodiscard]] bool is_mirrored() const {
    if (made_.channels.size() % 2 != 0 || made_.assignment.rail_changes == 0) return false;
    for (std::size_t c = 0; c < made_.channels.size(); c += 2) {
      const HostChannel& a = made_.channels[c];
      const HostChannel& b = made_.channels[c + 1];
      if (a.nics.entry != b.nics.exit || a.nics.exit != b.nics.entry ||
          !std::equal(a.order.begin(), a.order.end(), b.order.rbegin(), b.order.rend())) {
        return false;
      }
    }
    return true;
  }

  const topology::Topology& topology_;
  const ChannelRequest& request_;
  HostChannels made_;
  std::vector<std::pair<int, int>> ends_;  // indices of first and last GPU, by channel
  std::map<std::pair<int, bool>, int> used_ends_;
  Uses uses_;
};

/// The path from a NIC to one of another host, through networks and bridges; fewest links.
std::optional<std::vector<int>> path_between_nics(const topology::Topology& topology,
                                                  NodeIndex from, NodeIndex to) {
  std::vector<int> by(topology.nodes().size(), -1);
  std::vector<NodeIndex> open = {from};
  std::vector<bool> seen(topology.nodes().size(), false);
  seen[from] = true;
  for (std::size_t i = 0; i < open.size() && !seen[to]; ++i) {
    for (const LinkIndex index : topology.links_from(open[i])) {
      const topology::Link& link = topology.link(index);
      const bool leads_out = link.type == LinkType::kNet || link.type == LinkType::kNtb ||
                             link.type == LinkType::kEthernet;
      const bool through =
          link.destination == to || topology.node(link.destination).kind == NodeKind::kNetwork;
      if (!leads_out || !through || seen[link.destination]) continue;
      seen[link.destination] = true;
      by[link.destination] = static_cast<int>(index);
      open.push_back(link.destination);
    }
  }
  if (!seen[to]) return std::nullopt;
  std::vector<int> links;
  for (NodeIndex at = to; at != from; at = topology.link(static_cast<std::size_t>(by[at])).source) {
    links.push_back(by[at]);
  }
  std::reverse(links.begin(), links.end());
  return links;
}

class RingBuilder {
 public:
  RingBuilder(const topology::Topology& topology, const HostChannels& channels)
      : topology_(topology), channels_(channels) {
    if (topology.hosts() < 2) {
      throw Error(Errc::kInvalidArgument, "{}: channels through NICs need two hosts or more",
                  topology.name());
    }
    for (int host = 0; host < topology.hosts(); ++host) {
      gpus_.push_back(gpus_of(topology, host));
      auto& nics = nics_.emplace_back();
      for (const NodeIndex node : topology.nodes_of(NodeKind::kNic)) {
        if (topology.node(node).host == host) nics.push_back(node);
      }
      if (gpus_.back().size() != channels.gpus.size()) {
        throw Error(Errc::kInvalidArgument, "{}: host {} has {} GPUs, host {} has {}",
                    topology.name(), host, gpus_.back().size(), channels.host,
                    channels.gpus.size());
      }
    }
  }

  ChannelRing ring(std::size_t channel) {
    ChannelRing made;
    const int hosts = topology_.hosts();
    for (int host = 0; host < hosts; ++host) {
      const HostChannel& here = on_host(channel, host);
      const HostChannel& there = on_host(channel, (host + 1) % hosts);
      const auto& gpus = gpus_[static_cast<std::size_t>(host)];
      for (std::size_t i = 0; i + 1 < here.order.size(); ++i) {
        const NodeIndex from = gpus[static_cast<std::size_t>(here.order[i])];
        const NodeIndex to = gpus[static_cast<std::size_t>(here.order[i + 1])];
        made.gpus.push_back(from);
        made.hops.push_back(within_host(from, to));
      }
      const NodeIndex last = gpus[static_cast<std::size_t>(here.order.back())];
      made.gpus.push_back(last);
      made.hops.push_back(across(host, last, here, (host + 1) % hosts, there));
    }
    return made;
  }

 private:
  /// Mirrored pairs are exchanged on hosts with odd numbers.
  [[nodiscard]] const HostChannel& on_host(std::size_t channel, int host) const {
    const bool exchanged = channels_.mirrored && host % 2 == 1;
    return channels_.channels[exchanged ? channel ^ 1U : channel];
  }

  NodeIndex nic(int host, std::size_t port) const {
    const auto& nics = nics_[static_cast<std::size_t>(host)];
    const auto index = static_cast<std::size_t>(channels_.ports[port].rail);
    if (index >= nics.size()) {
      throw Error(Errc::kInvalidArgument, "{}: host {} has {} NICs, host {} more", topology_.name(),
                  host, nics.size(), channels_.host);
    }
    return nics[index];
  }

  std::vector<int> within_host(NodeIndex from, NodeIndex to) {
    auto& known = paths_[{from, to}];
    if (known.empty()) {
      const auto path = nearest_between_gpus(topology_, from, to);
      if (!path.has_value()) no_path(from, to);
      known = path->links;
    }
    return known;
  }

  std::vector<int> across(int host, NodeIndex last, const HostChannel& here, int next,
                          const HostChannel& there) {
    const NodeIndex exit = nic(host, here.nics.exit);
    const NodeIndex entry = nic(next, there.nics.entry);
    const NodeIndex first =
        gpus_[static_cast<std::size_t>(next)][static_cast<std::size_t>(there.order.front())];
    const auto out = nearest_over_pcie(topology_, last, exit);
    const auto over = path_between_nics(topology_, exit, entry);
    const auto in = nearest_over_pcie(topology_, entry, first);
    if (!out.has_value()) no_path(last, exit);
    if (!over.has_value()) no_path(exit, entry);
    if (!in.has_value()) no_path(entry, first);
    std::vector<int> links = out->links;
    links.insert(links.end(), over->begin(), over->end());
    links.insert(links.end(), in->links.begin(), in->links.end());
    return links;
  }

  [[noreturn]] void no_path(NodeIndex from, NodeIndex to) const {
    throw Error(Errc::kInvalidArgument, "{}: no path from {} to {}", topology_.name(),
                topology_.node(from).id, topology_.node(to).id);
  }

  const topology::Topology& topology_;
  const HostChannels& channels_;
  std::vector<std::vector<NodeIndex>> gpus_;
  std::vector<std::vector<NodeIndex>> nics_;
  std::map<std::pair<NodeIndex, NodeIndex>, std::vector<int>> paths_;
};

/// An all-gather along a ring: every rank's data goes around, all but the last hop.
void add_trees(const topology::Topology& topology, const ChannelRing& ring, const Fraction& weight,
               std::vector<Tree>& trees) {
  const std::size_t n = ring.gpus.size();
  const auto rank = [&](std::size_t at) { return topology.node(ring.gpus[at % n]).rank; };
  for (std::size_t start = 0; start < n; ++start) {
    Tree tree;
    tree.root = rank(start);
    tree.weight = weight;
    for (std::size_t i = 0; i + 1 < n; ++i) {
      const std::size_t at = (start + i) % n;
      tree.broadcast.push_back({rank(at), rank(at + 1), ring.hops[at]});
    }
    trees.push_back(std::move(tree));
  }
}

std::uint64_t device_number(const topology::Node& node, const char* attribute, std::size_t index) {
  for (const auto& [name, value] : node.attributes) {
    if (name == attribute && !value.empty() && value.size() < 8 &&
        value.find_first_not_of("0123456789") == std::string::npos) {
      return std::stoull(value);
    }
  }
  return index;
}

std::uint64_t gpu_number(const topology::Topology& topology, const HostChannels& channels,
                         int index) {
  const auto p = static_cast<std::size_t>(index);
  return device_number(topology.node(channels.gpus[p]), "gpu.dev", p);
}

std::uint64_t nic_number(const topology::Topology& topology, const NicPort& port) {
  return device_number(topology.node(port.node), "net.dev", static_cast<std::size_t>(port.rail));
}

std::string nccl_name(PathClass path) {
  switch (path) {
    case PathClass::kSelf: return "LOC";
    case PathClass::kFabric: return "NVL";
    case PathClass::kPix: return "PIX";
    case PathClass::kPxb: return "PXB";
    case PathClass::kPhb:
    case PathClass::kNode: return "PHB";
    case PathClass::kSys:
    case PathClass::kNet:
    case PathClass::kNone: return "SYS";
  }
  return "SYS";
}

}  // namespace

HostChannels make_channels(const topology::Topology& topology, const ChannelRequest& request) {
  return Maker(topology, request).make();
}

std::vector<ChannelRing> rings_of_channels(const topology::Topology& topology,
                                           const HostChannels& channels) {
  RingBuilder builder(topology, channels);
  std::vector<ChannelRing> rings;
  for (std::size_t c = 0; c < channels.channels.size(); ++c) rings.push_back(builder.ring(c));
  return rings;
}

Plan plan_of_channels(const topology::Topology& topology, const HostChannels& channels) {
  Plan plan;
  plan.collective = Collective::kAllGather;
  plan.algorithm = std::string("nics-") + std::string(name(channels.rule));
  plan.topology = topology.name();
  plan.plane = "all";
  for (const NodeIndex gpu : topology.gpus()) plan.gpus.push_back(static_cast<int>(gpu));
  for (const ChannelRing& ring : rings_of_channels(topology, channels)) {
    add_trees(topology, ring, 1, plan.trees);
  }
  std::vector<int> links;
  std::set<int> used;
  for (const Tree& tree : plan.trees) {
    for (const TreeEdge& edge : tree.broadcast) used.insert(edge.links.begin(), edge.links.end());
  }
  links.assign(used.begin(), used.end());
  // Every channel as fast as the busiest link allows; a measured NIC may be slower than its link.
  std::map<std::size_t, double> nic_rate;
  for (const NicPort& port : channels.ports) {
    nic_rate[static_cast<std::size_t>(port.rail)] = port.gbps;
  }
  Fraction busiest = 0;
  for (const LinkLoad& load : link_loads(topology, links, plan.trees)) {
    const topology::Link& link = topology.link(static_cast<std::size_t>(load.link));
    Fraction capacity = load.capacity;
    for (const NodeIndex end : {link.source, link.destination}) {
      if (topology.node(end).kind != NodeKind::kNic) continue;
      const auto nics = topology.nodes_of(NodeKind::kNic);
      std::size_t index = 0;
      for (const NodeIndex nic : nics) {
        if (nic == end) break;
        if (topology.node(nic).host == topology.node(end).host) ++index;
      }
      const auto rate = nic_rate.find(index);
      if (rate != nic_rate.end()) {
        capacity = std::min(capacity, Fraction::from_decimal(rate->second, kCapacityDigits));
      }
    }
    busiest = std::max(busiest, load.load / capacity);
  }
  for (Tree& tree : plan.trees) {
    tree.weight /= busiest;
    plan.algbw += tree.weight;
  }
  plan.links = link_loads(topology, links, plan.trees);
  plan.bound.algbw = plan.algbw;
  plan.bound.why.words = "the busiest link of these rings; not a bound of the machine";
  return plan;
}

NcclGraphs graph_of_channels(const topology::Topology& topology, const HostChannels& channels,
                             double channel_gbps) {
  const GpuPaths paths(topology, channels.gpus);
  PathClass intra = PathClass::kSelf;
  NcclGraph ring;
  ring.id = 0;
  ring.pattern = 4;
  ring.crossnic = channels.mirrored ? 2 : channels.assignment.rail_changes > 0 ? 1 : 0;
  ring.nchannels = static_cast<int>(channels.channels.size());
  ring.speedintra = ring.speedinter = channel_gbps;
  ring.latencyinter = 3;
  ring.samechannels = true;
  NcclGraph tree = ring;
  tree.id = 1;
  tree.crossnic = 0;
  // One GPU does all where there is one; else traffic to the network is spread over the first two.
  tree.pattern = channels.gpus.size() > 1 ? 1 : 3;
  for (const HostChannel& channel : channels.channels) {
    NcclChannel in_ring;
    for (const int index : channel.order) {
      in_ring.gpus.push_back({gpu_number(topology, channels, index), {}});
    }
    for (std::size_t i = 0; i + 1 < channel.order.size(); ++i) {
      intra = std::max(intra, paths.between(channel.order[i], channel.order[i + 1]).path_class);
    }
    const std::uint64_t entry = nic_number(topology, channels.ports[channel.nics.entry]);
    const std::uint64_t exit = nic_number(topology, channels.ports[channel.nics.exit]);
    NcclChannel in_tree = in_ring;
    in_ring.nets = {entry, exit};
    in_tree.nets = {entry, entry};
    ring.samechannels = ring.samechannels && channel.order == channels.channels.front().order;
    ring.channels.push_back(std::move(in_ring));
    tree.channels.push_back(std::move(in_tree));
  }
  ring.typeintra = tree.typeintra = nccl_name(intra);
  ring.typeinter = tree.typeinter = nccl_name(channels.assignment.worst_path);
  tree.samechannels = ring.samechannels;
  return {ring, tree};
}

HostChannels channels_of_graph(const topology::Topology& topology, int host,
                               const NcclGraphs& graphs, const MeasuredNics& measured) {
  if (host < 0 || host >= topology.hosts()) {
    throw Error(Errc::kInvalidArgument, "{} has {} hosts, not one with number {}", topology.name(),
                topology.hosts(), host);
  }
  HostChannels found;
  found.host = host;
  found.gpus = gpus_of(topology, host);
  found.ports = nic_ports(topology, host, measured);
  std::map<std::uint64_t, int> gpu_of;
  std::map<std::uint64_t, std::size_t> port_of;
  for (int g = 0; g < static_cast<int>(found.gpus.size()); ++g) {
    gpu_of[gpu_number(topology, found, g)] = g;
  }
  for (std::size_t p = 0; p < found.ports.size(); ++p) {
    port_of[nic_number(topology, found.ports[p])] = p;
  }
  const auto ring = std::find_if(graphs.rbegin(), graphs.rend(), [](const NcclGraph& graph) {
    return graph.id == 0 && graph.nchannels > 0;
  });
  if (ring == graphs.rend()) {
    throw Error(Errc::kInvalidArgument, "the graph file has no ring graph (id 0)");
  }
  NicProblem problem;
  problem.ports = found.ports;
  std::vector<ChannelNics> chosen;
  for (int c = 0; c < ring->nchannels; ++c) {
    const NcclChannel& given = ring->channels[static_cast<std::size_t>(c)];
    HostChannel channel;
    for (const NcclGpu& gpu : given.gpus) {
      const auto known = gpu_of.find(gpu.dev);
      if (known == gpu_of.end()) {
        throw Error(Errc::kInvalidArgument, "channel {}: host {} of {} has no GPU {:#x}", c, host,
                    topology.name(), gpu.dev);
      }
      channel.order.push_back(known->second);
    }
    if (channel.order.size() != found.gpus.size()) {
      throw Error(Errc::kInvalidArgument, "channel {} has {} GPUs, host {} of {} has {}", c,
                  channel.order.size(), host, topology.name(), found.gpus.size());
    }
    if (given.nets.empty()) {
      throw Error(Errc::kInvalidArgument,
                  "channel {} has no nets: the file is from a run inside one host", c);
    }
    const auto port = [&](std::uint64_t dev) {
      const auto known = port_of.find(dev);
      if (known == port_of.end()) {
        throw Error(Errc::kInvalidArgument, "channel {}: host {} of {} has no NIC {:#x}", c, host,
                    topology.name(), dev);
      }
      return known->second;
    };
    channel.nics = {port(given.nets[0]), port(given.nets[1])};
    // With one GPU for each host NCCL sends by the first net too.
    if (channel.order.size() == 1) channel.nics.exit = channel.nics.entry;
    problem.channels.push_back({found.gpus[static_cast<std::size_t>(channel.order.front())],
                                found.gpus[static_cast<std::size_t>(channel.order.back())]});
    chosen.push_back(channel.nics);
    found.channels.push_back(std::move(channel));
  }
  found.assignment = judge_nics(topology, problem, std::move(chosen));
  found.mirrored = ring->crossnic == 2 && found.channels.size() % 2 == 0;
  return found;
}

}  // namespace ropewalk::plan
