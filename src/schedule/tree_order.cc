#include "schedule/tree_order.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <numeric>

namespace ropewalk::schedule {
namespace {

/// A rank's part in one tree.
struct Part {
  int parent = -1;            // link into the rank; -1 at the root
  std::vector<int> children;  // links out of the rank
  int height = 0;             // hops to its furthest leaf
};

class OrderRun {
 public:
  OrderRun(const std::vector<RankedTree>& trees, int num_ranks, int slots)
      : slots_(static_cast<std::size_t>(slots)),
        parts_(static_cast<std::size_t>(num_ranks), std::vector<Part>(trees.size())),
        links_into_(static_cast<std::size_t>(num_ranks)),
        own_(static_cast<std::size_t>(num_ranks)),
        orders_(static_cast<std::size_t>(num_ranks)) {
    std::vector<std::vector<std::pair<int, int>>> known(static_cast<std::size_t>(num_ranks));
    for (std::size_t t = 0; t < trees.size(); ++t) add(trees[t], static_cast<int>(t), known);
  }

  /// False when ranks get stuck.
  bool finishes() {
    std::size_t left = parts_.size() * (parts_.empty() ? 0 : parts_[0].size());
    while (left > 0) {
      std::size_t moved = 0;
      // All choose by what the tick began with, then all act: no rank is favoured by its number.
      std::vector<std::pair<int, int>> chosen;
      for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
        const int tree = choose(static_cast<int>(rank));
        if (tree >= 0) chosen.emplace_back(static_cast<int>(rank), tree);
      }
      for (const auto& [rank, tree] : chosen) {
        act(rank, tree);
        ++moved;
      }
      if (moved == 0) return false;
      left -= moved;
    }
    return true;
  }

  [[nodiscard]] std::vector<std::vector<int>> take_orders() { return std::move(orders_); }

 private:
  void add(const RankedTree& ranked, int index,
           std::vector<std::vector<std::pair<int, int>>>& known) {
    const Tree& tree = ranked.tree;
    std::vector<int> by_depth(tree.parent.size());
    std::iota(by_depth.begin(), by_depth.end(), 0);
    std::sort(by_depth.begin(), by_depth.end(), [&](int a, int b) {
      return tree.depth[static_cast<std::size_t>(a)] > tree.depth[static_cast<std::size_t>(b)];
    });
    for (const int node : by_depth) {
      const auto p = static_cast<std::size_t>(node);
      const int rank = ranked.order[p];
      const int parent_node = tree.parent[p];
      if (parent_node < 0) {
        own_[static_cast<std::size_t>(rank)].push_back(index);
        continue;
      }
      const int parent = ranked.order[static_cast<std::size_t>(parent_node)];
      const int link = link_to(rank, known[static_cast<std::size_t>(parent)]);
      Part& mine = part(rank, index);
      Part& above = part(parent, index);
      mine.parent = link;
      above.children.push_back(link);
      above.height = std::max(above.height, mine.height + 1);
    }
  }

  /// The link of a rank to `to`, among those `known` that leave it.
  int link_to(int to, std::vector<std::pair<int, int>>& known) {
    for (const auto& [peer, link] : known) {
      if (peer == to) return link;
    }
    const int link = static_cast<int>(fifos_.size());
    fifos_.emplace_back();
    known.emplace_back(to, link);
    links_into_[static_cast<std::size_t>(to)].push_back(link);
    return link;
  }

  Part& part(int rank, int tree) {
    return parts_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(tree)];
  }
  std::deque<int>& fifo(int link) { return fifos_[static_cast<std::size_t>(link)]; }

  bool has_room(const Part& mine) {
    return std::all_of(mine.children.begin(), mine.children.end(),
                       [&](int link) { return fifo(link).size() < slots_; });
  }

  int choose(int rank) {
    int best = -1;
    const auto consider = [&](int tree) {
      const Part& mine = part(rank, tree);
      if (has_room(mine) && (best < 0 || mine.height > part(rank, best).height)) best = tree;
    };
    for (const int tree : own_[static_cast<std::size_t>(rank)]) consider(tree);
    for (const int link : links_into_[static_cast<std::size_t>(rank)]) {
      if (!fifo(link).empty()) consider(fifo(link).front());
    }
    return best;
  }

  void act(int rank, int tree) {
    const Part& mine = part(rank, tree);
    if (mine.parent >= 0) {
      fifo(mine.parent).pop_front();
    } else {
      std::erase(own_[static_cast<std::size_t>(rank)], tree);
    }
    for (const int link : mine.children) fifo(link).push_back(tree);
    orders_[static_cast<std::size_t>(rank)].push_back(tree);
  }

  std::size_t slots_;
  std::vector<std::vector<Part>> parts_;      // [rank][tree]
  std::vector<std::vector<int>> links_into_;  // [rank]
  std::vector<std::vector<int>> own_;         // [rank]: trees that start here, not yet begun
  std::vector<std::deque<int>> fifos_;        // [link]: trees whose chunk waits
  std::vector<std::vector<int>> orders_;
};

}  // namespace

std::vector<std::vector<int>> tree_order(const std::vector<RankedTree>& trees, int num_ranks,
                                         int slots) {
  OrderRun run(trees, num_ranks, slots);
  if (run.finishes()) return run.take_orders();
  std::vector<int> in_turn(trees.size());
  std::iota(in_turn.begin(), in_turn.end(), 0);
  return std::vector<std::vector<int>>(static_cast<std::size_t>(num_ranks), in_turn);
}

}  // namespace ropewalk::schedule
