// Automorphisms of a network: renamings of its nodes that keep every arc and capacity. Clusters are
// copies of one host whose GPUs are equivalent, so a plan for one GPU serves all.
#pragma once

#include <vector>

#include "plan/network.h"
#include "topology/topology.h"

namespace ropewalk::plan {

/// Renamings that were each verified arc by arc, and the equivalence classes that they make.
struct Symmetry {
  /// images[g][node]; the first is the identity. Together they take every rank to every rank of its
  /// class equally often.
  std::vector<std::vector<int>> images;

  std::vector<int> arc_class;       ///< of every arc
  std::vector<int> arc_class_size;  ///< arcs of every class
  std::vector<int> rank_class;      ///< of every rank: its first member's rank

  [[nodiscard]] int num_arc_classes() const { return static_cast<int>(arc_class_size.size()); }
  [[nodiscard]] bool is_trivial() const { return images.size() == 1; }
};

/// Tries rotations of the hosts, and within all hosts at once rotations and reflections of the GPUs
/// that keep blocks of GPUs together (a PCIe switch, a socket). What is verified is kept.
Symmetry find_symmetry(const topology::Topology& topology, const Network& network);

/// Only the identity.
Symmetry no_symmetry(const Network& network);

/// Where each arc goes under a renaming.
class ArcImages {
 public:
  explicit ArcImages(const Network& network);
  /// -1 where there is no such arc.
  [[nodiscard]] int image(const std::vector<int>& renaming, int arc) const;

 private:
  const Network& network_;
  std::vector<std::vector<std::pair<int, int>>> leaving_;  // by node: (to, arc), sorted
  std::vector<int> position_;                              // of an arc among its parallel ones
};

}  // namespace ropewalk::plan
