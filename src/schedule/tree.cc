#include "schedule/tree.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "schedule/building.h"

namespace ropewalk::schedule {
namespace {

constexpr int kMostParts = 64;

/// A tree whose nodes are mapped to ranks.
class OrderedTree {
 public:
  OrderedTree(const Tree& tree, const std::vector<int>& order) : tree_(tree), order_(order) {}

  [[nodiscard]] int rank(int node) const { return order_[static_cast<std::size_t>(node)]; }
  [[nodiscard]] bool is_root(int node) const { return parent_node(node) < 0; }
  [[nodiscard]] int parent(int node) const { return rank(parent_node(node)); }
  [[nodiscard]] std::vector<int> children(int node) const {
    std::vector<int> ranks;
    for (const int child : child_nodes(node)) ranks.push_back(rank(child));
    return ranks;
  }
  /// `in + child + child`
  [[nodiscard]] std::vector<Operand> own_and_children(int node) const {
    std::vector<Operand> operands = {Operand::input()};
    for (const int child : children(node)) operands.push_back(Operand::link(child));
    return operands;
  }
  /// The ranks below the node, and then its own: the order in which their blocks travel.
  [[nodiscard]] std::vector<int> subtree(int node) const {
    std::vector<int> ranks;
    add_subtree(node, ranks);
    return ranks;
  }
  [[nodiscard]] const std::vector<int>& child_nodes(int node) const {
    return tree_.children[static_cast<std::size_t>(node)];
  }
  StepList& steps(Schedule& schedule, int node, int channel) const {
    return schedule
        .programs[static_cast<std::size_t>(rank(node))][static_cast<std::size_t>(channel)];
  }

 private:
  [[nodiscard]] int parent_node(int node) const {
    return tree_.parent[static_cast<std::size_t>(node)];
  }
  void add_subtree(int node, std::vector<int>& ranks) const {
    for (const int child : child_nodes(node)) add_subtree(child, ranks);
    ranks.push_back(rank(node));
  }
  const Tree& tree_;
  const std::vector<int>& order_;
};

}  // namespace

int Tree::height() const { return *std::max_element(depth.begin(), depth.end()); }

Tree tree_of(std::vector<int> parent) {
  Tree tree;
  tree.parent = std::move(parent);
  const std::size_t n = tree.parent.size();
  tree.children.resize(n);
  tree.depth.assign(n, 0);
  for (std::size_t v = 0; v < n; ++v) {
    if (tree.parent[v] >= 0) {
      tree.children[static_cast<std::size_t>(tree.parent[v])].push_back(static_cast<int>(v));
    }
  }
  // Parents before children, whatever their numbers.
  std::vector<int> open = {0};
  while (!open.empty()) {
    const auto v = static_cast<std::size_t>(open.back());
    open.pop_back();
    for (const int child : tree.children[v]) {
      tree.depth[static_cast<std::size_t>(child)] = tree.depth[v] + 1;
      open.push_back(child);
    }
  }
  return tree;
}

Tree path_tree(int size) {
  std::vector<int> parent(static_cast<std::size_t>(size));
  std::iota(parent.begin(), parent.end(), -1);
  return tree_of(std::move(parent));
}

Tree heap_tree(int size) {
  std::vector<int> parent = {-1};
  for (int v = 1; v < size; ++v) parent.push_back((v - 1) / 2);
  return tree_of(std::move(parent));
}

Tree in_order_tree(int size) {
  std::vector<int> parent = {-1};
  for (int v = 1; v < size; ++v) {
    const int bit = v & -v;
    const int inner = (v - bit) | (2 * bit);
    parent.push_back(inner < size ? inner : v - bit);
  }
  return tree_of(std::move(parent));
}

void add_tree_broadcast(Schedule& schedule, int channel, const Tree& tree,
                        const std::vector<int>& order) {
  const OrderedTree ranked(tree, order);
  for (int node = 0; node < tree.size(); ++node) {
    const Operand from =
        ranked.is_root(node) ? Operand::input() : Operand::link(ranked.parent(node));
    ranked.steps(schedule, node, channel).push_back(write(0, {from}, ranked.children(node)));
  }
}

void add_tree_reduce(Schedule& schedule, int channel, const Tree& tree,
                     const std::vector<int>& order) {
  const OrderedTree ranked(tree, order);
  for (int node = 0; node < tree.size(); ++node) {
    StepList& steps = ranked.steps(schedule, node, channel);
    if (ranked.is_root(node)) {
      steps.push_back(finish(0, ranked.own_and_children(node)));
    } else {
      steps.push_back(send(0, ranked.own_and_children(node), {ranked.parent(node)}));
    }
  }
}

void add_tree_scatter(Schedule& schedule, int channel, const Tree& tree,
                      const std::vector<int>& order) {
  const OrderedTree ranked(tree, order);
  for (int node = 0; node < tree.size(); ++node) {
    StepList& steps = ranked.steps(schedule, node, channel);
    const Operand from =
        ranked.is_root(node) ? Operand::input() : Operand::link(ranked.parent(node));
    for (const int child : ranked.child_nodes(node)) {
      for (const int block : ranked.subtree(child)) {
        steps.push_back(send(block, {from}, {ranked.rank(child)}));
      }
    }
    steps.push_back(write(ranked.rank(node), {from}));
  }
}

void add_tree_gather(Schedule& schedule, int channel, const Tree& tree,
                     const std::vector<int>& order) {
  const OrderedTree ranked(tree, order);
  for (int node = 0; node < tree.size(); ++node) {
    StepList& steps = ranked.steps(schedule, node, channel);
    const int own = ranked.rank(node);
    const bool is_root = ranked.is_root(node);
    if (is_root) steps.push_back(write(own, {Operand::input()}));  // while others' blocks come
    for (const int child : ranked.child_nodes(node)) {
      const Operand from = Operand::link(ranked.rank(child));
      for (const int block : ranked.subtree(child)) {
        steps.push_back(is_root ? write(block, {from})
                                : send(block, {from}, {ranked.parent(node)}));
      }
    }
    if (!is_root) steps.push_back(send(own, {Operand::input()}, {ranked.parent(node)}));
  }
}

void add_tree_all_reduce(Schedule& schedule, int channel, const Tree& tree,
                         const std::vector<int>& order) {
  const OrderedTree ranked(tree, order);
  const int parts = schedule.parts;
  for (int node = 0; node < tree.size(); ++node) {
    StepList& steps = ranked.steps(schedule, node, channel);
    if (ranked.is_root(node)) {
      for (int part = 0; part < parts; ++part) {
        steps.push_back(finish(part, ranked.own_and_children(node), ranked.children(node)));
      }
      continue;
    }
    const Operand down = Operand::link(ranked.parent(node));
    const int lag = std::min(tree.depth[static_cast<std::size_t>(node)], parts);
    for (int i = 0; i < parts + lag; ++i) {
      if (i < parts) steps.push_back(send(i, ranked.own_and_children(node), {ranked.parent(node)}));
      if (i >= lag) steps.push_back(write(i - lag, {down}, ranked.children(node)));
    }
  }
}

void add_tree_pair_all_reduce(Schedule& schedule, int channel, const Tree& up,
                              const std::vector<int>& up_order, const Tree& down,
                              const std::vector<int>& down_order) {
  const OrderedTree above(up, up_order);
  const OrderedTree below(down, down_order);
  const int parts = schedule.parts;
  for (int node = 0; node < up.size(); ++node) {
    const int rank = above.rank(node);
    const int down_node = static_cast<int>(std::find(down_order.begin(), down_order.end(), rank) -
                                           down_order.begin());
    StepList& steps = above.steps(schedule, node, channel);
    if (above.is_root(node)) {
      for (int part = 0; part < parts; ++part) {
        steps.push_back(finish(part, above.own_and_children(node), below.children(down_node)));
      }
      continue;
    }
    // b - a of the header: the reduction and the broadcast.
    const int lag = std::min(parts, up.depth[static_cast<std::size_t>(node)] +
                                        down.depth[static_cast<std::size_t>(down_node)]);
    const Operand from = Operand::link(below.parent(down_node));
    for (int i = 0; i < parts + lag; ++i) {
      if (i < parts) {
        steps.push_back(send(i, above.own_and_children(node), {above.parent(node)}));
      }
      if (i >= lag) steps.push_back(write(i - lag, {from}, below.children(down_node)));
    }
  }
}

int tree_all_reduce_parts(int height) { return std::clamp(4 * height, 1, kMostParts); }

}  // namespace ropewalk::schedule
