#include "plan/nic_assignment.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <set>

#include "core/error.h"
#include "plan/device_path.h"

namespace ropewalk::plan {
namespace {

using topology::LinkType;
using topology::NodeIndex;
using topology::NodeKind;
using topology::PathClass;

constexpr int kUnreachable = std::numeric_limits<int>::max() / 8;

/// What must be assigned to a port: one end, or both ends of a channel that go together.
struct Demand {
  std::vector<int> cost;  ///< by port
};

/// Places demands on ports with room for `room[port]` each, at least cost. Returns the port of each
/// demand, or nothing when they do not fit.
std::optional<std::vector<std::size_t>> place(const std::vector<Demand>& demands,
                                              std::vector<int> room) {
  const std::size_t ports = room.size();
  std::vector<std::size_t> port_of(demands.size(), ports);
  for (std::size_t next = 0; next < demands.size(); ++next) {
    // Shortest alternating path from the new demand to a port with room; arcs back from a port to
    // a demand that it holds undo that choice. Few nodes, so Bellman and Ford's method serves.
    std::vector<int> cost(ports, kUnreachable);
    std::vector<std::size_t> by(ports, demands.size());  // the demand that moves to this port
    for (std::size_t p = 0; p < ports; ++p) {
      cost[p] = demands[next].cost[p];
      by[p] = next;
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t d = 0; d < next; ++d) {
        const std::size_t held = port_of[d];
        if (cost[held] >= kUnreachable) continue;
        for (std::size_t p = 0; p < ports; ++p) {
          if (demands[d].cost[p] >= kUnreachable) continue;
          const int found = cost[held] - demands[d].cost[held] + demands[d].cost[p];
          if (found < cost[p]) {
            cost[p] = found;
            by[p] = d;
            changed = true;
          }
        }
      }
    }
    std::size_t end = ports;
    for (std::size_t p = 0; p < ports; ++p) {
      if (room[p] > 0 && cost[p] < kUnreachable && (end == ports || cost[p] < cost[end])) end = p;
    }
    if (end == ports) return std::nullopt;
    --room[end];
    for (std::size_t p = end;;) {
      const std::size_t mover = by[p];
      const std::size_t from = port_of[mover];
      port_of[mover] = p;
      if (mover == next) break;
      p = from;
    }
  }
  return port_of;
}

/// The paths of every end to every port, once.
class NicPaths {
 public:
  NicPaths(const topology::Topology& topology, const std::vector<NicPort>& ports)
      : topology_(topology), ports_(ports) {}

  /// Data that comes in goes from the NIC to the GPU.
  const std::vector<std::optional<DevicePath>>& of(NodeIndex gpu, bool entry) {
    auto& known = known_[{gpu, entry}];
    if (known.empty()) {
      for (const NicPort& port : ports_) {
        known.push_back(entry ? nearest_over_pcie(topology_, port.node, gpu)
                              : nearest_over_pcie(topology_, gpu, port.node));
      }
      if (std::none_of(known.begin(), known.end(),
                       [](const auto& path) { return path.has_value(); })) {
        throw Error(Errc::kInvalidArgument, "{}: {} reaches no NIC of its host", topology_.name(),
                    topology_.node(gpu).id);
      }
    }
    return known;
  }

 private:
  const topology::Topology& topology_;
  const std::vector<NicPort>& ports_;
  std::map<std::pair<NodeIndex, bool>, std::vector<std::optional<DevicePath>>> known_;
};

Demand demand_of(const std::vector<std::optional<DevicePath>>& paths) {
  Demand demand;
  for (const auto& path : paths)
    demand.cost.push_back(path.has_value() ? path->distance : kUnreachable);
  return demand;
}

std::vector<int> room_for(const std::vector<NicPort>& ports, double load) {
  std::vector<int> room;
  for (const NicPort& port : ports) {
    // A load that is j / v admits j ends, whatever the rounding.
    room.push_back(static_cast<int>(std::floor(load * port.gbps * (1 + 1e-12) + 1e-9)));
  }
  return room;
}

/// The least load at which both directions fit, with the nearest ports.
std::vector<std::vector<std::size_t>> place_at_least_load(
    const std::vector<std::vector<Demand>>& directions, const std::vector<NicPort>& ports) {
  std::set<double> loads;
  const std::size_t most = directions.front().size();
  for (const NicPort& port : ports) {
    for (std::size_t j = 1; j <= most; ++j) loads.insert(static_cast<double>(j) / port.gbps);
  }
  for (const double load : loads) {
    std::vector<std::vector<std::size_t>> placed;
    for (const std::vector<Demand>& demands : directions) {
      auto found = place(demands, room_for(ports, load));
      if (!found.has_value()) break;
      placed.push_back(std::move(*found));
    }
    if (placed.size() == directions.size()) return placed;
  }
  // At the largest load every NIC has room for all.
  throw Error(Errc::kInternal, "NIC assignment: no load fits");
}

/// Swaps the ports of two ends of one direction where that costs no distance and fewer
/// channels change rails, until no exchange helps.
void put_rails_right(std::vector<ChannelNics>& channels, const std::vector<Demand>& entries,
                     const std::vector<Demand>& exits, const std::vector<NicPort>& ports) {
  const auto changes = [&](const ChannelNics& nics) {
    return ports[nics.entry].rail != ports[nics.exit].rail ? 1 : 0;
  };
  for (bool better = true; better;) {
    better = false;
    for (std::size_t a = 0; a < channels.size(); ++a) {
      for (std::size_t b = a + 1; b < channels.size(); ++b) {
        for (const bool entry : {true, false}) {
          const auto& cost = entry ? entries : exits;
          const auto at = entry ? &ChannelNics::entry : &ChannelNics::exit;
          const std::size_t pa = channels[a].*at;
          const std::size_t pb = channels[b].*at;
          if (cost[a].cost[pa] + cost[b].cost[pb] != cost[a].cost[pb] + cost[b].cost[pa]) continue;
          const int before = changes(channels[a]) + changes(channels[b]);
          std::swap(channels[a].*at, channels[b].*at);
          if (changes(channels[a]) + changes(channels[b]) < before) {
            better = true;
          } else {
            std::swap(channels[a].*at, channels[b].*at);
          }
        }
      }
    }
  }
}

std::vector<ChannelNics> balanced(const NicProblem& problem, NicPaths& paths) {
  std::vector<Demand> entries;
  std::vector<Demand> exits;
  for (const ChannelEnds& ends : problem.channels) {
    entries.push_back(demand_of(paths.of(ends.first, true)));
    exits.push_back(demand_of(paths.of(ends.last, false)));
  }
  std::vector<ChannelNics> channels(problem.channels.size());
  if (problem.one_rail) {
    std::vector<Demand> both = entries;
    for (std::size_t c = 0; c < both.size(); ++c) {
      for (std::size_t p = 0; p < problem.ports.size(); ++p) {
        both[c].cost[p] = std::min(kUnreachable, both[c].cost[p] + exits[c].cost[p]);
      }
    }
    const auto placed = place_at_least_load({both}, problem.ports).front();
    for (std::size_t c = 0; c < placed.size(); ++c) channels[c] = {placed[c], placed[c]};
    return channels;
  }
  const auto placed = place_at_least_load({entries, exits}, problem.ports);
  for (std::size_t c = 0; c < channels.size(); ++c) channels[c] = {placed[0][c], placed[1][c]};
  put_rails_right(channels, entries, exits, problem.ports);
  return channels;
}

std::vector<ChannelNics> least_used(const NicProblem& problem) {
  std::vector<int> uses(problem.ports.size(), 0);
  std::vector<ChannelNics> channels;
  for (std::size_t c = 0; c < problem.channels.size(); ++c) {
    std::vector<std::size_t> order(problem.ports.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return uses[a] < uses[b]; });
    const ChannelNics nics{order[0], order[order.size() > 1 ? 1 : 0]};
    ++uses[nics.entry];
    ++uses[nics.exit];
    channels.push_back(nics);
  }
  return channels;
}

std::size_t nearest(const std::vector<std::optional<DevicePath>>& paths) {
  const Demand demand = demand_of(paths);
  return static_cast<std::size_t>(std::min_element(demand.cost.begin(), demand.cost.end()) -
                                  demand.cost.begin());
}

NicAssignment judged(const NicProblem& problem, NicPaths& paths,
                     std::vector<ChannelNics> channels) {
  NicAssignment result;
  std::vector<int> in(problem.ports.size(), 0);
  std::vector<int> out(problem.ports.size(), 0);
  for (std::size_t c = 0; c < channels.size(); ++c) {
    const ChannelNics& nics = channels[c];
    ++in[nics.entry];
    ++out[nics.exit];
    const auto& entry = paths.of(problem.channels[c].first, true)[nics.entry];
    const auto& exit = paths.of(problem.channels[c].last, false)[nics.exit];
    for (const auto* path : {&entry, &exit}) {
      // Only the published rules choose a NIC that the GPU has no path to.
      if (!path->has_value()) {
        result.worst_path = PathClass::kNone;
        continue;
      }
      result.distance += (*path)->distance;
      result.worst_path = std::max(result.worst_path, (*path)->path_class);
    }
    if (problem.ports[nics.entry].rail != problem.ports[nics.exit].rail) ++result.rail_changes;
  }
  for (std::size_t p = 0; p < problem.ports.size(); ++p) {
    result.largest_load =
        std::max(result.largest_load, std::max(in[p], out[p]) / problem.ports[p].gbps);
  }
  result.channels = std::move(channels);
  return result;
}

void require_some(const topology::Topology& topology, const NicProblem& problem) {
  if (problem.ports.empty()) {
    throw Error(Errc::kInvalidArgument, "{}: no NIC to assign", topology.name());
  }
  if (problem.channels.empty()) {
    throw Error(Errc::kInvalidArgument, "{}: no channel to assign NICs to", topology.name());
  }
}

double nominal_gbps(const topology::Topology& topology, NodeIndex nic) {
  const topology::Node& node = topology.node(nic);
  if (node.net_gbps.has_value()) return *node.net_gbps;
  double widest = 0;
  for (const topology::LinkIndex index : topology.links_from(nic)) {
    const topology::Link& link = topology.link(index);
    if (link.type == LinkType::kNet || link.type == LinkType::kNtb ||
        link.type == LinkType::kEthernet) {
      widest = std::max(widest, link.capacity);
    }
  }
  return widest;
}

}  // namespace

std::string_view name(NicRule rule) noexcept {
  switch (rule) {
    case NicRule::kBalanced: return "balanced";
    case NicRule::kLeastUsed: return "least-used";
    case NicRule::kFirstRing: return "first-ring";
  }
  return "?";
}

std::vector<NicPort> nic_ports(const topology::Topology& topology, int host,
                               const MeasuredNics& measured) {
  for (const auto& [id, gbps] : measured) {
    const auto node = topology.find(id);
    if (!node.has_value() || topology.node(*node).kind != NodeKind::kNic) {
      throw Error(Errc::kInvalidArgument, "{}: there is no NIC \"{}\"", topology.name(), id);
    }
    if (!(gbps > 0) || !std::isfinite(gbps)) {
      throw Error(Errc::kInvalidArgument, "NIC {}: a rate of {} GB/s", id, gbps);
    }
  }
  std::vector<NicPort> ports;
  int index = 0;
  for (const NodeIndex node : topology.nodes_of(NodeKind::kNic)) {
    if (topology.node(node).host != host) continue;
    const int rail = index++;
    const bool reached =
        std::any_of(topology.gpus().begin(), topology.gpus().end(), [&](NodeIndex gpu) {
          return topology.node(gpu).host == host && nearest_over_pcie(topology, gpu, node);
        });
    if (!reached) continue;
    const auto given = measured.find(topology.node(node).id);
    const double gbps = given != measured.end() ? given->second : nominal_gbps(topology, node);
    if (!(gbps > 0)) {
      throw Error(Errc::kInvalidArgument,
                  "{}: NIC {} has no line rate (net_gbps) and leads nowhere; measure it",
                  topology.name(), topology.node(node).id);
    }
    ports.push_back({node, gbps, rail});
  }
  return ports;
}

NicAssignment judge_nics(const topology::Topology& topology, const NicProblem& problem,
                         std::vector<ChannelNics> channels) {
  require_some(topology, problem);
  NicPaths paths(topology, problem.ports);
  return judged(problem, paths, std::move(channels));
}

NicAssignment assign_nics(const topology::Topology& topology, const NicProblem& problem,
                          NicRule rule) {
  require_some(topology, problem);
  NicPaths paths(topology, problem.ports);
  std::vector<ChannelNics> channels;
  switch (rule) {
    case NicRule::kBalanced: channels = balanced(problem, paths); break;
    case NicRule::kLeastUsed: channels = least_used(problem); break;
    case NicRule::kFirstRing: {
      const ChannelEnds& first = problem.channels.front();
      channels.assign(problem.channels.size(),
                      {nearest(paths.of(first.first, true)), nearest(paths.of(first.last, false))});
      break;
    }
  }
  return judged(problem, paths, std::move(channels));
}

}  // namespace ropewalk::plan
