// What an algorithm is given, and how its trees become the plan's.
#pragma once

#include <memory>
#include <vector>

#include "core/types.h"
#include "plan/network.h"
#include "plan/out_tree.h"
#include "plan/plan.h"
#include "plan/tree_program.h"
#include "topology/topology.h"

namespace ropewalk::plan {

struct Problem {
  Problem(const topology::Topology& machine, Network links, Collective wanted)
      : topology(machine), network(std::move(links)), collective(wanted) {}

  const topology::Topology& topology;
  Network network;  ///< data flows along its arcs
  Collective collective = Collective::kAllGather;
  int root = 0;
  int trees_per_root = 0;  ///< 0: any number

  /// The linear programme of all_reduce, or of the collective on a network whose switches are not
  /// balanced (reversed for reductions). Solved when it is first asked for. One thread at a time.
  [[nodiscard]] const TreeProgramSolution& program() const;

  /// Found when it is first asked for, for machines of many GPUs; the identity for small ones,
  /// where exact methods are quick. One thread at a time.
  [[nodiscard]] const Symmetry& symmetry() const;

 private:
  mutable std::shared_ptr<const TreeProgramSolution> solved_;
  mutable std::shared_ptr<const Symmetry> symmetry_;
};

/// Out-trees of the network as trees of the plan: for broadcast and all_gather.
std::vector<Tree> broadcast_trees(const Network& network, const std::vector<OutTree>& trees);

/// Out-trees of the reversed network as in-trees of the plan: for reduce and reduce_scatter.
/// Weights and arcs' indices are the same in both networks.
std::vector<Tree> reduce_trees(const Network& network, const std::vector<OutTree>& trees);

/// All-reduce as a reduce-scatter and an all-gather that run at once, pipelined: in-trees and
/// out-trees of the same root in pairs. The two are slowed down so that together they keep within
/// the links: with rates R and A alone, the pair has 1/(1/R + 1/A).
///
/// @pre every root has the same share of either forest's weight
std::vector<Tree> paired_trees(const Network& network, const std::vector<OutTree>& reversed_trees,
                               const std::vector<OutTree>& trees);

/// One tree of the linear programme as the plan's; `weight` in Network::unit. For reduce and
/// reduce_scatter the tree is one of the reversed network.
Tree plan_tree(const Network& network, Collective collective, const TreePair& pair,
               const Fraction& weight);

/// Pairs in-trees with out-trees of the same root; both forests have the same weight at every root.
std::vector<Tree> zip_trees(const Network& network, const std::vector<OutTree>& reversed_trees,
                            const std::vector<OutTree>& trees);

}  // namespace ropewalk::plan
