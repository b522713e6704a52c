#include "schedule/tree.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "schedule/building.h"

namespace ropewalk::schedule {
namespace {

constexpr int kMostParts = 64;

/// A tree with ranks for places.
class Seats {
 public:
  Seats(const Tree& tree, const std::vector<int>& order) : tree_(tree), order_(order) {}

  [[nodiscard]] int rank(int place) const { return order_[static_cast<std::size_t>(place)]; }
  [[nodiscard]] bool is_root(int place) const { return parent_place(place) < 0; }
  [[nodiscard]] int parent(int place) const { return rank(parent_place(place)); }
  [[nodiscard]] std::vector<int> children(int place) const {
    std::vector<int> ranks;
    for (const int child : tree_.children[static_cast<std::size_t>(place)]) {
      ranks.push_back(rank(child));
    }
    return ranks;
  }
  /// `in + child + child`
  [[nodiscard]] std::vector<Operand> own_and_children(int place) const {
    std::vector<Operand> operands = {Operand::input()};
    for (const int child : children(place)) operands.push_back(Operand::link(child));
    return operands;
  }
  StepList& steps(Schedule& schedule, int place, int channel) const {
    return schedule
        .programs[static_cast<std::size_t>(rank(place))][static_cast<std::size_t>(channel)];
  }

 private:
  [[nodiscard]] int parent_place(int place) const {
    return tree_.parent[static_cast<std::size_t>(place)];
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
  const Seats seats(tree, order);
  for (int place = 0; place < tree.size(); ++place) {
    const Operand from =
        seats.is_root(place) ? Operand::input() : Operand::link(seats.parent(place));
    seats.steps(schedule, place, channel).push_back(write(0, {from}, seats.children(place)));
  }
}

void add_tree_reduce(Schedule& schedule, int channel, const Tree& tree,
                     const std::vector<int>& order) {
  const Seats seats(tree, order);
  for (int place = 0; place < tree.size(); ++place) {
    StepList& steps = seats.steps(schedule, place, channel);
    if (seats.is_root(place)) {
      steps.push_back(finish(0, seats.own_and_children(place)));
    } else {
      steps.push_back(send(0, seats.own_and_children(place), {seats.parent(place)}));
    }
  }
}

void add_tree_all_reduce(Schedule& schedule, int channel, const Tree& tree,
                         const std::vector<int>& order) {
  const Seats seats(tree, order);
  const int parts = schedule.parts;
  for (int place = 0; place < tree.size(); ++place) {
    StepList& steps = seats.steps(schedule, place, channel);
    if (seats.is_root(place)) {
      for (int part = 0; part < parts; ++part) {
        steps.push_back(finish(part, seats.own_and_children(place), seats.children(place)));
      }
      continue;
    }
    const Operand down = Operand::link(seats.parent(place));
    const int lag = std::min(tree.depth[static_cast<std::size_t>(place)], parts);
    for (int i = 0; i < parts + lag; ++i) {
      if (i < parts) steps.push_back(send(i, seats.own_and_children(place), {seats.parent(place)}));
      if (i >= lag) steps.push_back(write(i - lag, {down}, seats.children(place)));
    }
  }
}

void add_tree_pair_all_reduce(Schedule& schedule, int channel, const Tree& up,
                              const std::vector<int>& up_order, const Tree& down,
                              const std::vector<int>& down_order) {
  const Seats above(up, up_order);
  const Seats below(down, down_order);
  const int parts = schedule.parts;
  for (int place = 0; place < up.size(); ++place) {
    const int rank = above.rank(place);
    const int down_place = static_cast<int>(std::find(down_order.begin(), down_order.end(), rank) -
                                            down_order.begin());
    StepList& steps = above.steps(schedule, place, channel);
    if (above.is_root(place)) {
      for (int part = 0; part < parts; ++part) {
        steps.push_back(finish(part, above.own_and_children(place), below.children(down_place)));
      }
      continue;
    }
    // b - a of the header: the way up and the way down.
    const int lag = std::min(parts, up.depth[static_cast<std::size_t>(place)] +
                                        down.depth[static_cast<std::size_t>(down_place)]);
    const Operand from = Operand::link(below.parent(down_place));
    for (int i = 0; i < parts + lag; ++i) {
      if (i < parts) {
        steps.push_back(send(i, above.own_and_children(place), {above.parent(place)}));
      }
      if (i >= lag) steps.push_back(write(i - lag, {from}, below.children(down_place)));
    }
  }
}

int tree_all_reduce_parts(int height) { return std::clamp(4 * height, 1, kMostParts); }

}  // namespace ropewalk::schedule
