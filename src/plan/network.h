// The graph that all planning algorithms work on: what a topology, a plane and a choice of GPUs
// leave, with whole-number capacities.
#pragma once

#include <string>
#include <vector>

#include "plan/fraction.h"
#include "plan/max_flow.h"
#include "topology/topology.h"

namespace ropewalk::plan {

struct Arc {
  int from = 0;
  int to = 0;
  Capacity capacity = 0;  ///< in Network::unit
  int link = 0;           ///< index into Topology::links
};

/// A directed graph whose ranks are the GPUs that take part. Nodes keep the topology's indices, so
/// those that do not matter here are there without arcs.
struct Network {
  int num_nodes = 0;
  std::vector<int> ranks;         ///< node of every rank
  std::vector<int> rank_of_node;  ///< -1 for what is no rank
  std::vector<Arc> arcs;
  Fraction unit = 1;  ///< GB/s of a capacity of 1

  [[nodiscard]] int num_ranks() const { return static_cast<int>(ranks.size()); }
  [[nodiscard]] bool is_rank(int node) const {
    return rank_of_node[static_cast<std::size_t>(node)] >= 0;
  }
};

/// Data that the ranks must be able to send to every rank: supplies[r] units from rank r.
using Supplies = std::vector<Capacity>;

/// What takes part in a collective, and over which links.
struct Selection {
  std::string plane;      ///< a plane of the topology; "" or "all" without such a plane: every link
  std::vector<int> gpus;  ///< topology ranks, in the order of the plan's ranks; empty: all
};

/// Digits after the decimal point that capacities keep: 1 kB/s.
inline constexpr int kCapacityDigits = 6;

/// Other GPUs than the selected ones are left out altogether: they may be busy with other work.
/// Nodes that lead nowhere are left out too.
///
/// @throws Error kInvalidArgument for an unknown plane, GPUs that are not there or twice, fewer
///         than two GPUs, and GPUs without a path to each other (names them)
Network make_network(const topology::Topology& topology, const Selection& selection);

/// The same with every arc turned round: reduce-scatter is all-gather on it, reduce is broadcast.
Network reversed(const Network& network);

/// Of every arc the index of one that leads back with the same capacity, each once; -1: there is
/// none.
std::vector<int> twin_arcs(const Network& network);

/// Whether what enters every node that is no rank may also leave it (capacity in = capacity out),
/// as full duplex links have it. Edge splitting needs this.
bool switches_are_balanced(const Network& network);

}  // namespace ropewalk::plan
