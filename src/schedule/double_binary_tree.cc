// Double binary tree: two trees, each for half of the data, such that a rank that is inner in one
// is a leaf in the other. So every rank sends and receives the data about once: full bandwidth at
// logarithmic latency. Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast,
// reduction and scan" (2009).
//
// Channels come in pairs, one per tree. Both trees have the root at node 0; the other nodes
// 1..m of the second tree are mirrored (m even) or shifted by one (m odd), which turns odd nodes,
// the leaves, into even ones.
#include "schedule/algorithms.h"
#include "schedule/building.h"
#include "schedule/tree.h"

namespace ropewalk::schedule {
namespace {

bool double_binary_tree_supports(const Request& request) noexcept {
  switch (request.collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce:
      return request.channels < 1024 && affordable(128.0 * request.num_ranks * request.channels);
    default: return false;
  }
}

/// The rank at each node of the second tree.
std::vector<int> second_order(const std::vector<int>& first) {
  const int others = static_cast<int>(first.size()) - 1;
  std::vector<int> order = {first[0]};
  for (int node = 1; node <= others; ++node) {
    const int moved = others % 2 == 0 ? others + 1 - node : node % others + 1;
    order.push_back(first[static_cast<std::size_t>(moved)]);
  }
  return order;
}

Schedule compile_double_binary_tree(const Request& request) {
  const Tree tree = in_order_tree(request.num_ranks);
  const bool both = request.collective == Collective::kAllReduce;
  const int parts = both ? tree_all_reduce_parts(tree.height()) : 1;
  const int channels = (request.channels + 1) / 2 * 2;
  Schedule schedule = blank("double_binary_tree", request, parts, channels);
  for (int channel = 0; channel < channels; ++channel) {
    const int pair = channel / 2;
    // Without a root each pair of trees takes another one: the root's work goes around.
    const int first = both ? pair % request.num_ranks : request.root;
    std::vector<int> order = ring_order(request.num_ranks, first, pair);
    if (channel % 2 == 1) order = second_order(order);
    switch (request.collective) {
      case Collective::kAllReduce: add_tree_all_reduce(schedule, channel, tree, order); break;
      case Collective::kBroadcast: add_tree_broadcast(schedule, channel, tree, order); break;
      default: add_tree_reduce(schedule, channel, tree, order); break;
    }
  }
  return schedule;
}

}  // namespace

const Algorithm kDoubleBinaryTree{
    "double_binary_tree", "two trees, each for half of the data; few hops at full bandwidth",
    double_binary_tree_supports, compile_double_binary_tree};

}  // namespace ropewalk::schedule
