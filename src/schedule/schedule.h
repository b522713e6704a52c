// Schedules: collectives as data. One step, one sentence:
//
//   take the operands (links, my input, my output), combine them, and deliver the result to my
//   output, to links, or to both.
//
// A Schedule holds every rank's step lists. It is a plain value: made by a compiler of this folder
// or parsed from text, proven by check() (check.h), then run by the executors. Nothing here knows
// sizes: sizes and element types come with the call (layout.h turns a block into an element range).
//
// Threads: values; no shared state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/types.h"

namespace ropewalk::schedule {

/// Where an operand comes from. A link is named by its peer: on one channel there is at most one
/// link from one rank to another.
struct Operand {
  enum class Kind : std::uint8_t { kLink, kInput, kOutput };
  Kind kind = Kind::kLink;
  int peer = -1;  ///< the sending rank, for kLink only

  static Operand link(int peer) { return {Kind::kLink, peer}; }
  static Operand input() { return {Kind::kInput, -1}; }
  static Operand output() { return {Kind::kOutput, -1}; }
  friend bool operator==(const Operand&, const Operand&) = default;
};

/// One step of one rank on one channel, for the current chunk of `block`.
///
/// - Operands are combined with the call's operator from left to right, so a schedule fixes the
///   order of reduction. One operand means a copy.
/// - kInput reads this rank's own contribution to `block`; kOutput reads what this rank last wrote
///   to the output of `block`. At most one of the two appears.
/// - `finished` says that the value of this step holds all contributions (all_reduce,
///   reduce_scatter, reduce): here the executor applies what comes after the sum, as the division
///   of an integer average. The checker refuses a wrong mark.
/// - A step waits until all its links have a chunk and all its send links have a free slot.
/// - Where the block has no elements in a round (few elements, last parts), sender and receivers
///   skip its steps.
struct Step {
  int block = 0;
  std::vector<Operand> operands;
  bool write_output = false;
  bool finished = false;
  std::vector<int> send;  ///< receiving ranks
  friend bool operator==(const Step&, const Step&) = default;
};

/// One rank's strand on one channel: its steps, run in order, once per chunk.
using StepList = std::vector<Step>;

/// `programs[rank][channel]`. A channel carries the share weight[channel] / sum(weight) of the
/// data. Blocks: see layout.h; there are `parts` blocks to each unit of the collective.
struct Schedule {
  Collective collective = Collective::kAllReduce;
  std::string algorithm;  ///< a label: "ring", "double_binary_tree", ...
  int num_ranks = 0;
  int root = 0;   ///< 0 for collectives without a root
  int parts = 1;  ///< into how many parts each unit is cut, e.g. num_ranks for a ring all-reduce
  std::vector<int> weight;  ///< one positive number per channel
  std::vector<std::vector<StepList>> programs;

  [[nodiscard]] int num_channels() const { return static_cast<int>(weight.size()); }
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

}  // namespace ropewalk::schedule
