// Schedules from plans: weighted trees become channels and blocks.
//
// - Rooted collectives (broadcast, reduce): one channel per tree, with the tree's weight.
// - all_gather and reduce_scatter: every rank roots trees with the same total weight. The data of
//   each rank is laid along a line of that length and cut where any rank changes from one of its
//   trees to the next; each piece is a channel, in which every rank has one tree. The block of a
//   rank moves along that rank's tree.
// - all_reduce whose trees are rooted equally at every rank, Pipelining::kByParts: the same pieces,
// with one
//   part per rank. A part is reduced to its root along the in-tree and comes back along the
//   out-tree.
// - all_reduce in general: one channel per tree (or pair of trees), with the tree's weight. The
//   broadcast of a chunk overlaps the reduction of later ones (Pipelining).
//
// So the share of every tree is what the plan says, as far as elements and whole-number weights
// allow, and the checker proves the rest. Trees are over ranks; which physical links a hop takes is
// kept beside the schedule, because executors that have no choice of path do not need it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "plan/plan.h"
#include "schedule/schedule.h"

namespace ropewalk::schedule {

/// The physical links (indices into Topology::links) of every message of a schedule.
class Routes {
 public:
  /// Messages of one block from `source` to `destination` on a channel take these paths, in the
  /// order in which the source sends them in a round (twice only where an all-reduce sends the same
  /// block up and down between the same two ranks).
  void add(int channel, int block, int source, int destination, std::span<const int> links);

  /// The path of message number `nth` of a round. Nothing when the plan does not say.
  [[nodiscard]] const std::vector<int>* find(int channel, int block, int source, int destination,
                                             int nth = 0) const;

  /// All of `others`, whose channel 0 becomes `first_channel`.
  void append(const Routes& others, int first_channel);

  [[nodiscard]] bool empty() const noexcept { return paths_.empty(); }

  /// Distinguishes different schedules.
  [[nodiscard]] std::uint64_t digest() const;

 private:
  using Key = std::tuple<int, int, int, int>;
  std::map<Key, std::vector<std::vector<int>>> paths_;
};

struct PlannedSchedule {
  Schedule schedule;
  Routes routes;
};

/// How the broadcast of an all-reduce along a tree overlaps the reduction of later chunks.
enum class Pipelining {
  kByParts,  ///< a channel is cut into parts, with reduction and broadcast alternating in the step
             ///< list
  /// A channel is one tree with one step per direction; the executor lets the broadcast lag
  /// (lags.h), for which links of 4 slots are enough. So the pipeline is filled and drained once,
  /// not in each round. Run round by round, such a list waits for each chunk's full round trip.
  kByLags,
};

/// Compiles. The algorithm's label is "plan-" and the plan's own.
///
/// @throws Error kInvalidArgument for a collective that plans do not have, trees that do not span
///         the ranks or do not fit the collective, and plans that need more than kMaxChannels
///         channels or kMaxSteps steps (fewer trees per root help)
PlannedSchedule from_plan(const plan::Plan& plan, Pipelining pipelining = Pipelining::kByParts);

/// Bytes that a call with `count` elements of `element_bytes` puts on each link (by index into
/// Topology::links, `num_links` of them): every message of the schedule, counted from its steps,
/// along its route. Boundaries of parts and channels are multiples of `granule` elements.
std::vector<double> bytes_on_links(const PlannedSchedule& planned, std::size_t count,
                                   std::size_t element_bytes, std::size_t granule,
                                   std::size_t num_links);

}  // namespace ropewalk::schedule
