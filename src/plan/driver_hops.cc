#include "plan/driver_hops.h"

#include <algorithm>
#include <array>

#include "core/index.h"
#include "plan/device_path.h"

namespace ropewalk::plan {
namespace {

using topology::NodeKind;

/// What a hop's links say of it.
struct Hop {
  bool forwarded = false;     // by a GPU
  bool all_join_gpus = true;  // NVLink, xGMI
  bool some_join_gpus = false;
  bool back_home = false;  // through a NIC, to the same host
  bool leaves_host = false;
};

Hop hop_of(const topology::Topology& topology, const Plan& plan, const TreeEdge& edge) {
  const topology::NodeIndex from = at(plan.gpus[at(edge.source)]);
  const topology::NodeIndex to = at(plan.gpus[at(edge.destination)]);
  Hop out;
  out.leaves_host = topology.node(from).host != topology.node(to).host;
  for (const int index : edge.links) {
    const topology::Link& link = topology.link(at(index));
    const NodeKind kind = topology.node(link.destination).kind;
    out.forwarded = out.forwarded || (kind == NodeKind::kGpu && link.destination != to);
    out.all_join_gpus = out.all_join_gpus && joins_gpus(link.type);
    out.some_join_gpus = out.some_join_gpus || joins_gpus(link.type);
    out.back_home = out.back_home ||
                    (!out.leaves_host && (kind == NodeKind::kNic || kind == NodeKind::kNetwork));
  }
  return out;
}

template <typename Holds>
bool all_hops(const Tree& tree, Holds&& holds) {
  return std::ranges::all_of(tree.reduce, holds) && std::ranges::all_of(tree.broadcast, holds);
}

}  // namespace

bool joins_gpus(topology::LinkType type) {
  return type == topology::LinkType::kNvlink || type == topology::LinkType::kXgmi;
}

bool driver_takes(const topology::Topology& topology, const Plan& plan, const TreeEdge& edge) {
  const Hop hop = hop_of(topology, plan, edge);
  if (hop.forwarded) return false;
  if (hop.all_join_gpus || hop.leaves_host) return true;
  return !hop.back_home && !nearest_over_fabric(topology, at(plan.gpus[at(edge.source)]),
                                                at(plan.gpus[at(edge.destination)]))
                                .has_value();
}

HopClass hop_class(const topology::Topology& topology, const Plan& plan, const Tree& tree) {
  if (all_hops(tree, [&](const TreeEdge& edge) { return driver_takes(topology, plan, edge); })) {
    return HopClass::kPeerAccess;
  }
  const auto without = [&](const TreeEdge& edge) {
    const Hop hop = hop_of(topology, plan, edge);
    return !hop.forwarded && !hop.back_home && !hop.some_join_gpus;
  };
  return all_hops(tree, without) ? HopClass::kNoPeerAccess : HopClass::kNone;
}

std::vector<HopClassShare> hop_classes(const topology::Topology& topology, const Plan& plan) {
  std::array<HopClassShare, 3> all{HopClassShare{HopClass::kPeerAccess, 0, 0},
                                   HopClassShare{HopClass::kNoPeerAccess, 0, 0},
                                   HopClassShare{HopClass::kNone, 0, 0}};
  for (const Tree& tree : plan.trees) {
    HopClassShare& share = all[static_cast<std::size_t>(hop_class(topology, plan, tree))];
    ++share.trees;
    share.rate += tree.weight;
  }
  std::vector<HopClassShare> out;
  std::ranges::copy_if(all, std::back_inserter(out),
                       [](const HopClassShare& share) { return share.trees > 0; });
  return out;
}

}  // namespace ropewalk::plan
