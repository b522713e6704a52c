// Second part of the checker: one channel, run on sets of contributions.
//
// One run of one round from empty FIFOs proves all rounds, chunk counts and orders of progress:
//
// - Order. A rank does one step at a time, and what a step waits for (a chunk, a free slot) stays
//   once it is there. So the ranks are a Kahn process network: every order of progress performs
//   the same steps with the same values, and stops at the same step (Kahn, "The semantics of a
//   simple language for parallel programming", 1974). Any one order is a proof for all.
// - Rounds. Draw an arrow from each step to those that wait for it: to the rank's next step; from
//   a send to the receive of that chunk; and, FIFOs holding S chunks, from the receive of a link's
//   i-th chunk to the send of its (i+S)-th. When every link's sends and receives are equal in
//   number in one round (no residue), no arrow leads from a round to an earlier one, ranks that
//   run ahead included. A deadlock is a circle of arrows, so it lies within one round; and within
//   a round the arrows are the same for each, and are those of a run from empty FIFOs (counting
//   the arrows from the previous round as done). The same holds when different schedules follow
//   each other on the same links.
// - Empty chunks. Small counts leave some blocks without elements in a round; both ends skip their
//   steps. Matching survives: the order of the remaining chunks on a link is still the same at
//   both ends, and every chunk meets the same receive as before. No circle arises: two chunks of
//   a link that are S apart among the remaining ones are at least S apart among all, so an arrow
//   between them was there before, or follows from arrows that were there by the receiver's own
//   order. And blocks never mix, so the values of the remaining ones stay.
// - Chunks of different rounds, and different blocks, are disjoint memory. So nothing that one
//   round leaves in an output can reach another one, and what this rank last wrote to the output of
//   a block is what it wrote in the same round.
#pragma once

#include <cstddef>
#include <vector>

#include "schedule/check.h"
#include "schedule/defects.h"
#include "schedule/schedule.h"

namespace ropewalk::schedule {

/// What happened, for the analysis of published buffers. Steps of all ranks are numbered as nodes:
/// rank by rank, in the order of their lists.
struct Trace {
  std::vector<std::size_t> first_node;  ///< per rank, plus the total at the end
  std::vector<std::size_t> fired;       ///< nodes in the order in which they ran
  // The i-th link operand of a node is entry first_receive[node] + i, the i-th send likewise.
  std::vector<std::size_t> first_receive;
  std::vector<std::size_t> first_send;
  std::vector<std::size_t> received_from;  ///< the node that sent the chunk
  std::vector<std::size_t> sent_to;        ///< the node that takes the chunk
};

struct ChannelVerdict {
  bool in_place = true;  ///< no input is read after an output was written over it
  int longest_path = 0;
  std::vector<LinkLoad> links;  ///< without their units
  Trace trace;
};

/// Runs a schedule whose form is sound; adds its defects to `defects`.
ChannelVerdict run_symbolically(const Schedule& schedule, int channel, int slots, Defects& defects);

/// True when, in an in-place call, the input and the output of `block` at `rank` are the same
/// memory. They never overlap otherwise: an in-place call shifts whole units, so a part of a
/// unit lies on the same part.
bool is_aliased(const Schedule& schedule, int rank, int block) noexcept;

}  // namespace ropewalk::schedule
