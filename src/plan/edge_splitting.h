// Removing switches from a network without weakening any cut that the ranks need.
//
// A switch w forwards and does nothing else, so capacity u -> w -> t is worth a direct arc u -> t,
// as long as no rank loses: every rank must still be reached by all the data. Which amount of which
// pair may be joined is a max-flow question; that some pair always may is a theorem for nodes with
// as much capacity in as out (J. Bang-Jensen, A. Frank, B. Jackson, SIAM J. Discrete Math. 8, 1995,
// after W. Mader). The use for collectives, and the two flow tests: C. Zhao et al., "ForestColl",
// arXiv 2402.06787.
#pragma once

#include <vector>

#include "plan/network.h"

namespace ropewalk::plan {

/// A path for some capacity of a direct arc: the network's arcs in order.
struct PathShare {
  std::vector<int> arcs;  ///< indices into Network::arcs
  Capacity amount = 0;
};

/// A network of ranks only, whose arcs remember the paths that they stand for.
class SplitNetwork {
 public:
  /// Splits off every node that is no rank.
  ///
  /// @throws Error kInvalidArgument for more than 400 nodes
  /// @pre every rank can get all supplies (max-flow), and switches_are_balanced(network)
  SplitNetwork(const Network& network, const Supplies& supplies);

  [[nodiscard]] int num_ranks() const { return num_ranks_; }
  /// Units that may go directly from one rank to another.
  [[nodiscard]] Capacity capacity(int from_rank, int to_rank) const;

  /// Uses up `amount` of the direct arc and says along which paths it goes: few of them.
  /// @pre the sum of all amounts taken stays within capacity()
  std::vector<PathShare> take(int from_rank, int to_rank, Capacity amount);

 private:
  /// Part of a direct arc: an arc of the network, or what was joined at a node that is gone.
  struct Part {
    int arc = -1;
    int via = -1;
    Capacity left = 0;
  };
  struct Pair {
    Capacity capacity = 0;
    std::vector<Part> parts;
  };

  Pair& pair(int from, int to) {
    return pairs_[static_cast<std::size_t>(from) * static_cast<std::size_t>(num_nodes_) +
                  static_cast<std::size_t>(to)];
  }
  [[nodiscard]] const Pair& pair(int from, int to) const {
    return pairs_[static_cast<std::size_t>(from) * static_cast<std::size_t>(num_nodes_) +
                  static_cast<std::size_t>(to)];
  }
  void join(int from, int via, int to, Capacity amount);
  void remove(int node, const Supplies& supplies);
  Capacity joinable(int from, int via, int to, Capacity wanted, const Supplies& supplies) const;
  std::vector<PathShare> take_nodes(int from, int to, Capacity amount);

  int num_ranks_ = 0;
  int num_nodes_ = 0;        // ranks first, then the nodes to remove
  std::vector<Pair> pairs_;  // dense: these graphs are small
  std::vector<bool> gone_;
};

}  // namespace ropewalk::plan
