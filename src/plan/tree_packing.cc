#include "plan/tree_packing.h"

#include <algorithm>

#include "core/error.h"
#include "core/index.h"

namespace ropewalk::plan {

namespace {

class Packing {
 public:
  Packing(const SplitNetwork& network, const Supplies& supplies) : ranks_(network.num_ranks()) {
    left_.resize(at(ranks_) * at(ranks_));
    for (int from = 0; from < ranks_; ++from) {
      for (int to = 0; to < ranks_; ++to) {
        if (from != to) {
          left(from, to) = network.capacity(from, to);
        }
      }
    }
    for (int rank = 0; rank < ranks_; ++rank) {
      if (supplies[at(rank)] > 0) {
        growing_.push_back(start(rank, supplies[at(rank)]));
      }
    }
  }

  std::vector<Batch> run() {
    while (!growing_.empty()) {
      grow(pick());
    }
    return std::move(done_);
  }

 private:
  struct Growing {
    Batch batch;
    std::vector<bool> has;
    std::vector<int> order;  // ranks in the tree, breadth first
  };

  Capacity& left(int from, int to) { return left_[at(from) * at(ranks_) + at(to)]; }

  Growing start(int root, Capacity multiplicity) const {
    Growing out{{root, multiplicity, {}}, std::vector<bool>(at(ranks_), false), {root}};
    out.has[at(root)] = true;
    return out;
  }

  /// The batch to complete next: the first that was started.
  static std::size_t pick() { return 0; }

  /// How many of batch `index` may take the edge from -> to.
  Capacity room(std::size_t index, int from, int to) {
    const Capacity most = std::min(growing_[index].batch.multiplicity, left(from, to));
    if (most <= 0) {
      return 0;
    }
    FlowGraph graph(ranks_);
    for (int a = 0; a < ranks_; ++a) {
      for (int b = 0; b < ranks_; ++b) {
        if (a != b && left(a, b) > 0) {
          graph.add_arc(a, b, left(a, b));
        }
      }
    }
    Capacity others = 0;
    for (std::size_t other = 0; other < growing_.size(); ++other) {
      if (other == index) {
        continue;
      }
      const Growing& partial = growing_[other];
      others += partial.batch.multiplicity;
      const int source = graph.add_node();
      graph.add_arc(from, source, partial.batch.multiplicity);
      for (const int rank : partial.order) {
        graph.add_arc(source, rank, kUnlimited);
      }
    }
    return std::min(most, graph.max_flow(from, to, others + most) - others);
  }

  void grow(std::size_t index) {
    // Breadth first: all edges of the ranks nearest to the root before those of farther ones.
    for (std::size_t next = 0; growing_[index].order.size() < at(ranks_); ++next) {
      RW_ASSERT(next < growing_[index].order.size());
      const int from = growing_[index].order[next];
      for (int step = 1; step < ranks_; ++step) {
        const int to = (from + step) % ranks_;
        if (growing_[index].has[at(to)]) {
          continue;
        }
        const Capacity taken = room(index, from, to);
        if (taken <= 0) {
          continue;
        }
        if (taken < growing_[index].batch.multiplicity) {
          Growing rest = growing_[index];
          rest.batch.multiplicity -= taken;
          growing_.push_back(std::move(rest));
        }
        Growing& tree = growing_[index];
        tree.batch.multiplicity = taken;
        tree.batch.edges.emplace_back(from, to);
        tree.has[at(to)] = true;
        tree.order.push_back(to);
        left(from, to) -= taken;
      }
    }
    done_.push_back(std::move(growing_[index].batch));
    growing_.erase(growing_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  int ranks_;
  std::vector<Capacity> left_;
  std::vector<Growing> growing_;
  std::vector<Batch> done_;
};

}  // namespace

std::vector<Batch> pack_trees(const SplitNetwork& network, const Supplies& supplies) {
  return Packing(network, supplies).run();
}

}  // namespace ropewalk::plan
