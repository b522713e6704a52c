#include "plan/network.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "core/error.h"
#include "core/index.h"

namespace ropewalk::plan {

namespace {

std::vector<topology::LinkType> types_of(const topology::Topology& topology,
                                         const std::string& plane) {
  for (const topology::Plane& known : topology.planes()) {
    if (known.name == plane) {
      return known.types;
    }
  }
  if (plane.empty() || plane == "all") {
    return topology::all_link_types();
  }
  std::string names;
  for (const topology::Plane& known : topology.planes()) {
    names += (names.empty() ? "" : ", ") + known.name;
  }
  throw Error(Errc::kInvalidArgument, "plane: {} has no plane \"{}\"; it has {}", topology.name(),
              plane, names.empty() ? "none, so give none" : names);
}

std::vector<int> selected_gpus(const topology::Topology& topology, const std::vector<int>& wanted) {
  const int there = static_cast<int>(topology.gpus().size());
  std::vector<int> out;
  std::set<int> seen;
  for (const int gpu : wanted) {
    if (gpu < 0 || gpu >= there) {
      throw Error(Errc::kInvalidArgument, "gpus: there is no GPU {}: {} has {} GPUs, 0 to {}", gpu,
                  topology.name(), there, there - 1);
    }
    if (!seen.insert(gpu).second) {
      throw Error(Errc::kInvalidArgument, "gpus: GPU {} is named twice", gpu);
    }
    out.push_back(static_cast<int>(topology.gpus()[at(gpu)]));
  }
  if (wanted.empty()) {
    for (const topology::NodeIndex node : topology.gpus()) {
      out.push_back(static_cast<int>(node));
    }
  }
  if (out.size() < 2) {
    throw Error(Errc::kInvalidArgument, "a collective needs at least 2 GPUs; {} {} {}",
                topology.name(), wanted.empty() ? "has" : "was asked for", out.size());
  }
  return out;
}

/// Takes away, again and again, nodes that are no rank and have at most one neighbour.
void drop_dead_ends(Network& network) {
  for (bool changed = true; changed;) {
    std::vector<std::set<int>> neighbours(at(network.num_nodes));
    for (const Arc& arc : network.arcs) {
      neighbours[at(arc.from)].insert(arc.to);
      neighbours[at(arc.to)].insert(arc.from);
    }
    const std::size_t before = network.arcs.size();
    std::erase_if(network.arcs, [&](const Arc& arc) {
      const auto leads_nowhere = [&](int node) {
        return !network.is_rank(node) && neighbours[at(node)].size() <= 1;
      };
      return leads_nowhere(arc.from) || leads_nowhere(arc.to);
    });
    changed = network.arcs.size() != before;
  }
}

std::vector<bool> reached(const Network& network, int start, bool backwards) {
  std::vector<std::vector<int>> next(at(network.num_nodes));
  for (const Arc& arc : network.arcs) {
    next[at(backwards ? arc.to : arc.from)].push_back(backwards ? arc.from : arc.to);
  }
  std::vector<bool> seen(at(network.num_nodes), false);
  std::vector<int> pending{start};
  seen[at(start)] = true;
  while (!pending.empty()) {
    const int node = pending.back();
    pending.pop_back();
    for (const int neighbour : next[at(node)]) {
      if (!seen[at(neighbour)]) {
        seen[at(neighbour)] = true;
        pending.push_back(neighbour);
      }
    }
  }
  return seen;
}

void require_connected(const Network& network, const topology::Topology& topology,
                       const std::string& plane) {
  const std::vector<bool> to = reached(network, network.ranks[0], false);
  const std::vector<bool> from = reached(network, network.ranks[0], true);
  std::string names;
  for (const int node : network.ranks) {
    if (!to[at(node)] || !from[at(node)]) {
      names += (names.empty() ? "" : ", ") + topology.node(at(node)).id;
    }
  }
  if (!names.empty()) {
    throw Error(Errc::kInvalidArgument, "{}{}: no path from {} to {} and back", topology.name(),
                plane.empty() ? "" : " (plane " + plane + ")",
                topology.node(at(network.ranks[0])).id, names);
  }
}

}  // namespace

Network make_network(const topology::Topology& topology, const Selection& selection) {
  const std::vector<topology::LinkType> types = types_of(topology, selection.plane);
  Network out;
  out.num_nodes = static_cast<int>(topology.nodes().size());
  out.ranks = selected_gpus(topology, selection.gpus);
  out.rank_of_node.assign(at(out.num_nodes), -1);
  for (int rank = 0; rank < out.num_ranks(); ++rank) {
    out.rank_of_node[at(out.ranks[at(rank)])] = rank;
  }
  std::vector<Fraction> capacities;
  for (std::size_t i = 0; i < topology.links().size(); ++i) {
    const topology::Link& link = topology.link(i);
    const auto takes_part = [&](topology::NodeIndex node) {
      return topology.node(node).kind != topology::NodeKind::kGpu || out.rank_of_node[node] >= 0;
    };
    if (std::find(types.begin(), types.end(), link.type) == types.end() ||
        !takes_part(link.source) || !takes_part(link.destination)) {
      continue;
    }
    out.arcs.push_back({static_cast<int>(link.source), static_cast<int>(link.destination), 0,
                        static_cast<int>(i)});
  }
  drop_dead_ends(out);
  require_connected(out, topology, selection.plane);

  // Whole numbers of the largest unit that divides all capacities.
  Fraction::Integer common = 0;
  Fraction::Integer scale = 1;
  for (int i = 0; i < kCapacityDigits; ++i) {
    scale *= 10;
  }
  for (Arc& arc : out.arcs) {
    const Fraction exact =
        Fraction::from_decimal(topology.link(at(arc.link)).capacity, kCapacityDigits);
    arc.capacity = static_cast<Capacity>((exact * Fraction(scale)).numerator());
    common = greatest_common_divisor(common, arc.capacity);
  }
  Fraction::Integer total = 0;
  for (Arc& arc : out.arcs) {
    arc.capacity /= static_cast<Capacity>(common);
    total += arc.capacity;
  }
  // Flows are scaled by up to the number of ranks, and must stay below "unlimited".
  if (total * out.num_ranks() * 4 > kUnlimited) {
    throw Error(Errc::kInvalidArgument,
                "{}: capacities are too large and too fine together for exact planning: give them "
                "with fewer digits",
                topology.name());
  }
  out.unit = Fraction(common, scale);
  return out;
}

Network reversed(const Network& network) {
  Network out = network;
  for (Arc& arc : out.arcs) {
    std::swap(arc.from, arc.to);
  }
  return out;
}

std::vector<int> twin_arcs(const Network& network) {
  std::map<std::tuple<int, int, Capacity>, std::vector<int>> by_ends;
  for (std::size_t i = 0; i < network.arcs.size(); ++i) {
    const Arc& arc = network.arcs[i];
    by_ends[{arc.from, arc.to, arc.capacity}].push_back(static_cast<int>(i));
  }
  std::vector<int> out(network.arcs.size(), -1);
  for (const auto& [ends, arcs] : by_ends) {
    const auto back = by_ends.find({std::get<1>(ends), std::get<0>(ends), std::get<2>(ends)});
    if (back == by_ends.end()) continue;
    for (std::size_t i = 0; i < std::min(arcs.size(), back->second.size()); ++i) {
      out[at(arcs[i])] = back->second[i];
    }
  }
  return out;
}

bool switches_are_balanced(const Network& network) {
  std::vector<Capacity> surplus(at(network.num_nodes), 0);
  for (const Arc& arc : network.arcs) {
    surplus[at(arc.from)] -= arc.capacity;
    surplus[at(arc.to)] += arc.capacity;
  }
  for (int node = 0; node < network.num_nodes; ++node) {
    if (!network.is_rank(node) && surplus[at(node)] != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace ropewalk::plan
