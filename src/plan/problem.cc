#include "plan/problem.h"

#include <algorithm>

#include "core/error.h"
#include "core/index.h"

namespace ropewalk::plan {

namespace {

std::vector<TreeEdge> downward(const Network& network, const OutTree& tree) {
  std::vector<TreeEdge> out;
  for (const RoutedEdge& edge : tree.edges) {
    TreeEdge routed{edge.parent, edge.child, {}};
    for (const int arc : edge.arcs) {
      routed.links.push_back(network.arcs[at(arc)].link);
    }
    out.push_back(std::move(routed));
  }
  return out;
}

std::vector<TreeEdge> upward(const Network& network, const OutTree& tree) {
  std::vector<TreeEdge> out = downward(network, tree);
  std::reverse(out.begin(), out.end());  // leaves send first
  for (TreeEdge& edge : out) {
    std::swap(edge.source, edge.destination);
    std::reverse(edge.links.begin(), edge.links.end());
  }
  return out;
}

}  // namespace

const TreeProgramSolution& Problem::program() const {
  if (solved_ == nullptr) {
    Collective shape = collective;
    const bool backwards =
        collective == Collective::kReduce || collective == Collective::kReduceScatter;
    if (collective == Collective::kReduce) shape = Collective::kBroadcast;
    if (collective == Collective::kReduceScatter) shape = Collective::kAllGather;
    solved_ = std::make_shared<const TreeProgramSolution>(
        solve_tree_program(backwards ? reversed(network) : network, shape, root, &symmetry()));
  }
  return *solved_;
}

const Symmetry& Problem::symmetry() const {
  if (symmetry_ == nullptr) {
    symmetry_ = std::make_shared<const Symmetry>(find_symmetry(topology, network));
  }
  return *symmetry_;
}

std::vector<Tree> broadcast_trees(const Network& network, const std::vector<OutTree>& trees) {
  std::vector<Tree> out;
  for (const OutTree& tree : trees) {
    out.push_back({tree.root, tree.weight * network.unit, {}, downward(network, tree)});
  }
  return out;
}

std::vector<Tree> reduce_trees(const Network& network, const std::vector<OutTree>& trees) {
  std::vector<Tree> out;
  for (const OutTree& tree : trees) {
    out.push_back({tree.root, tree.weight * network.unit, upward(network, tree), {}});
  }
  return out;
}

Tree plan_tree(const Network& network, Collective collective, const TreePair& pair,
               const Fraction& weight) {
  Tree out{pair.root, weight * network.unit, {}, {}};
  if (collective == Collective::kReduce || collective == Collective::kReduceScatter) {
    out.reduce = upward(network, {pair.root, weight, pair.out});
    return out;
  }
  out.broadcast = downward(network, {pair.root, weight, pair.out});
  if (collective == Collective::kAllReduce) {
    out.reduce = upward(network, {pair.root, weight, pair.in});
  }
  return out;
}

std::vector<Tree> zip_trees(const Network& network, const std::vector<OutTree>& reversed_trees,
                            const std::vector<OutTree>& trees) {
  std::vector<Tree> out;
  for (int root = 0; root < network.num_ranks(); ++root) {
    std::vector<const OutTree*> in_trees;
    std::vector<const OutTree*> out_trees;
    for (const OutTree& tree : reversed_trees) {
      if (tree.root == root) {
        in_trees.push_back(&tree);
      }
    }
    for (const OutTree& tree : trees) {
      if (tree.root == root) {
        out_trees.push_back(&tree);
      }
    }
    // Pairs of equal weight first, so that few trees are cut in two.
    std::vector<bool> used(out_trees.size(), false);
    std::vector<std::pair<const OutTree*, Fraction>> left_in;
    for (const OutTree* tree : in_trees) {
      std::size_t same = 0;
      while (same < out_trees.size() && (used[same] || out_trees[same]->weight != tree->weight)) {
        ++same;
      }
      if (same == out_trees.size()) {
        left_in.emplace_back(tree, tree->weight);
        continue;
      }
      used[same] = true;
      out.push_back({root, tree->weight * network.unit, upward(network, *tree),
                     downward(network, *out_trees[same])});
    }
    std::vector<std::pair<const OutTree*, Fraction>> left_out;
    for (std::size_t i = 0; i < out_trees.size(); ++i) {
      if (!used[i]) {
        left_out.emplace_back(out_trees[i], out_trees[i]->weight);
      }
    }
    std::size_t a = 0;
    std::size_t b = 0;
    while (a < left_in.size() && b < left_out.size()) {
      const Fraction both = std::min(left_in[a].second, left_out[b].second);
      out.push_back({root, both * network.unit, upward(network, *left_in[a].first),
                     downward(network, *left_out[b].first)});
      left_in[a].second -= both;
      left_out[b].second -= both;
      a += left_in[a].second == Fraction(0) ? 1 : 0;
      b += left_out[b].second == Fraction(0) ? 1 : 0;
    }
    RW_ASSERT(a == left_in.size() && b == left_out.size());
  }
  return out;
}

std::vector<Tree> paired_trees(const Network& network, const std::vector<OutTree>& reversed_trees,
                               const std::vector<OutTree>& trees) {
  const Fraction reduce_rate = total_weight(reversed_trees);
  const Fraction gather_rate = total_weight(trees);
  std::vector<OutTree> in_trees = reversed_trees;
  std::vector<OutTree> out_trees = trees;
  for (OutTree& tree : in_trees) {
    tree.weight *= gather_rate / (reduce_rate + gather_rate);
  }
  for (OutTree& tree : out_trees) {
    tree.weight *= reduce_rate / (reduce_rate + gather_rate);
  }
  return zip_trees(network, in_trees, out_trees);
}

}  // namespace ropewalk::plan
