// The plan: which trees carry which share of a collective's data, over which physical links, at
// which rate, and the bound that no schedule can exceed.
//
// A plan is a value, made by plan/planner.h from a topology. It knows nothing of message sizes or
// chunks: schedules are compiled from it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/types.h"
#include "plan/fraction.h"

namespace ropewalk::plan {

/// Data goes from one rank to another along `links`.
///
/// `links` are indices into Topology::links, in the order that the data passes them: the first
/// leaves the source's GPU, the last enters the destination's. Nodes between the two only forward;
/// they may be switches, CPUs, NICs or (in ring plans over sparse machines) other GPUs.
struct TreeEdge {
  int source = 0;       ///< rank that sends
  int destination = 0;  ///< rank that receives
  std::vector<int> links;

  friend bool operator==(const TreeEdge&, const TreeEdge&) = default;
};

/// One tree over all ranks, or a pair of one in-tree and one out-tree with the same root.
///
/// | collective     | reduce edges (towards the root) | broadcast edges (from the root) |
/// | -------------- | ------------------------------- | ------------------------------- |
/// | broadcast      | none                            | spanning tree                   |
/// | reduce         | spanning tree                   | none                            |
/// | all_gather     | none                            | spanning tree                   |
/// | reduce_scatter | spanning tree                   | none                            |
/// | all_reduce     | spanning tree                   | spanning tree                   |
///
/// Edges stand in an order in which data can pass: a broadcast edge's source is the root or the
/// destination of an earlier edge; a reduce edge's source has no later edge that enters it.
struct Tree {
  int root = 0;     ///< rank
  Fraction weight;  ///< GB/s of the message that this tree carries, all trees running at once
  std::vector<TreeEdge> reduce;
  std::vector<TreeEdge> broadcast;

  friend bool operator==(const Tree&, const Tree&) = default;
};

/// A set of nodes whose outgoing links limit the collective, or prices of links that do.
///
/// Cut: what the ranks inside must give to those outside passes `links`, whose capacities sum to
/// `capacity`. How the rate follows from it is in `Bound`.
/// Prices: for any prices of links, no plan is faster than (sum of price x capacity) / (price of
/// the cheapest tree). Where a cut cannot say why (all-reduce; switches whose links in and out
/// differ), the optimal prices of the linear programme do.
struct Bottleneck {
  std::vector<int> inside_nodes;  ///< topology nodes of the cut's source side; empty for prices
  std::vector<int> links;         ///< links that leave it, or those with a price above zero
  std::vector<double> prices;     ///< of each of `links`; empty for a cut
  Fraction capacity;              ///< GB/s that leave the cut
  int ranks_inside = 0;
  std::string words;  ///< "the 4 PCIe uplinks of socket 0 limit this"
};

/// What no schedule can exceed on this topology: fluid limit, full duplex, switches neither copy
/// nor add, ranks may relay.
struct Bound {
  Fraction algbw;  ///< GB/s
  Bottleneck why;
};

/// How a link is used.
struct LinkLoad {
  int link = 0;       ///< index into Topology::links
  Fraction load;      ///< GB/s that the plan puts on it, all trees running
  Fraction capacity;  ///< GB/s
};

struct Plan {
  Collective collective = Collective::kAllGather;
  std::string algorithm;  ///< "optimal", "packed", "ring", ...
  std::string topology;   ///< its name
  std::string plane;      ///< the kinds of links used: a plane of the topology, or "all"
  int root = 0;           ///< of broadcast and reduce
  std::vector<int> gpus;  ///< topology node of every rank

  std::vector<Tree> trees;

  /// Sum of the trees' weights: algbw in the limit of large messages, as nccl-tests defines it.
  Fraction algbw;
  Bound bound;
  bool optimal = false;  ///< algbw is bound.algbw, within 1e-6 of it

  /// Every link of the plane that could be used, with its load; idle ones too.
  std::vector<LinkLoad> links;

  double latency_us = 0;  ///< estimate for a message of no bytes: see plan/estimate.h
  int hops = 0;           ///< ranks that the farthest data passes to, up and down one tree

  [[nodiscard]] int num_ranks() const { return static_cast<int>(gpus.size()); }
};

/// busbw = algbw x this: 2(N-1)/N for all_reduce, (N-1)/N for all_gather and reduce_scatter, 1 for
/// broadcast and reduce.
double bus_factor(Collective collective, int num_ranks);

}  // namespace ropewalk::plan
