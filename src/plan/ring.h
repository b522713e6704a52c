// Rings as NCCL searches them: the baseline that other plans are compared with.
//
// For falling speeds per channel, a depth-first search adds one ring after another; every hop takes
// the speed off the links of its path, and fits only where every link has that much left. The
// solution with the largest channels x speed wins. In the form described by NCCL's documentation
// and source (2.30): ranks in order first, then the order of the channel before, the same
// backwards, then free search by the bandwidth that is left; the number of steps is bounded, so a
// ring may be missed.
#pragma once

#include "plan/problem.h"

namespace ropewalk::plan {

/// One ring: ranks in order, with the arcs from each to the next.
struct Ring {
  std::vector<int> ranks;
  std::vector<std::vector<int>> paths;
};

struct RingSearch {
  std::vector<Ring> rings;  ///< all with the same speed
  double speed_gbps = 0;
};

/// @throws Error kInvalidArgument if no ring over all ranks was found at any speed
RingSearch search_rings(const Network& network);

std::vector<Tree> plan_ring(const Problem& problem);

/// Chains along these rings, of every root or the one root, each ring with the same share.
/// @param speed  of a ring, in Network::unit
std::vector<Tree> trees_of_rings(const Problem& problem, const std::vector<Ring>& rings,
                                 const Fraction& speed);

}  // namespace ropewalk::plan
