// Binary tree: every rank has up to two children; the number of hops grows with the logarithm of
// the number of ranks, but an inner rank sends (receives) the data twice, and in scatter and gather
// also passes on the blocks of the ranks below it.
#include <cmath>

#include "schedule/algorithms.h"
#include "schedule/building.h"
#include "schedule/tree.h"

namespace ropewalk::schedule {
namespace {

// Up to so many ranks all others are the root's children: gather and scatter are then `direct`.
constexpr int kFlat = 3;

bool binary_tree_supports(const Request& request) noexcept {
  switch (request.collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce: return affordable(128.0 * request.num_ranks * request.channels);
    case Collective::kGather:
    case Collective::kScatter: {  // each block over all hops to its rank
      const double ranks = request.num_ranks;
      if (request.num_ranks <= kFlat) return false;
      return affordable(ranks * (1 + std::log2(ranks)) * request.channels);
    }
    default: return false;
  }
}

Schedule compile_binary_tree(const Request& request) {
  const Tree tree = heap_tree(request.num_ranks);
  const bool both = request.collective == Collective::kAllReduce;
  const int parts = both ? tree_all_reduce_parts(tree.height()) : 1;
  Schedule schedule = blank("binary_tree", request, parts, request.channels);
  for (int channel = 0; channel < request.channels; ++channel) {
    // Without a root each channel takes another one: the inner ranks' work goes around.
    const int first = both ? channel % request.num_ranks : request.root;
    const std::vector<int> order = ring_order(request.num_ranks, first, channel);
    switch (request.collective) {
      case Collective::kAllReduce: add_tree_all_reduce(schedule, channel, tree, order); break;
      case Collective::kBroadcast: add_tree_broadcast(schedule, channel, tree, order); break;
      case Collective::kGather: add_tree_gather(schedule, channel, tree, order); break;
      case Collective::kScatter: add_tree_scatter(schedule, channel, tree, order); break;
      default: add_tree_reduce(schedule, channel, tree, order); break;
    }
  }
  return schedule;
}

}  // namespace

const Algorithm kBinaryTree{"binary_tree", "a tree with two children each; few hops",
                            binary_tree_supports, compile_binary_tree};

}  // namespace ropewalk::schedule
