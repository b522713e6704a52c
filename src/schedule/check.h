// The checker: no schedule runs that it has not accepted.
//
// A symbolic run of all ranks over bounded FIFOs, on sets of contributions instead of numbers. It
// proves, for a chunk of any size and any number of chunks:
//
// - result: every rank's output of every block holds exactly the contributions that the
//   collective's definition asks for, each exactly once;
// - the marks: `finished` stands exactly where a value first holds all contributions;
// - no residue: every chunk sent is received, by the same block;
// - no deadlock under any order of progress. Ranks are deterministic and wait for one step at a
//   time, so they form a Kahn process network with bounded FIFOs: what one order of progress can
//   finish, every order finishes (Kahn 1974; Parks 1995 for bounded FIFOs). One greedy run of one
//   round is a proof for all rounds, also where ranks run ahead and where parts are empty: the
//   argument stands in symbolic_run.h;
// - safety in place: no input is read after an output was written over it, and (for `direct`
//   below) no published buffer is overwritten while a peer may still read it.
//
// It also counts what each link carries, from which time and the distance to a bound follow.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "schedule/schedule.h"

namespace ropewalk::schedule {

/// Load of a directed pair of ranks on one channel, in blocks per chunk round and as a share.
struct LinkLoad {
  int channel = 0;
  int source = 0;
  int destination = 0;
  int messages = 0;  ///< chunks per round
  double units = 0;  ///< data carried, in multiples of `count` elements of the call
};

/// Whether the executor may send a step's data without copying it to a slot. A sender may publish
/// the address of the user's buffer instead of copying: the output when the step writes it or is a
/// plain `out -> peers`, the input when the step is a plain `in -> peers`. A flag is set when no
/// later step of the same round overwrites that buffer before the receiver has certainly read it.
/// `out_of_place` and `in_place` hold for the two kinds of call.
///
/// The executor's part: a receiver frees the slot (and its sends become visible) only after it has
/// read what was published, and a rank's call returns only after all its published buffers were
/// read, because the caller may then change them.
struct DirectSend {
  bool out_of_place = false;
  bool in_place = false;
};

struct CheckReport {
  bool accepted = false;
  /// Empty when accepted; else one sentence per defect found, naming rank, channel and step number
  /// (steps count from 0), the worst first. At most 16.
  std::vector<std::string> defects;
  bool in_place = false;  ///< the schedule may be used for in-place calls
  std::vector<LinkLoad> links;
  int longest_path = 0;  ///< steps on the longest chain of dependent messages (latency in hops)
  /// direct[rank][channel][step][send index]; filled when accepted
  std::vector<std::vector<std::vector<std::vector<DirectSend>>>> direct;
};

/// Runs the checker with FIFOs of `slots` chunks; what it accepts is right with more slots too.
/// Never throws for a bad schedule: ranks, blocks or peers out of range are defects too.
CheckReport check(const Schedule& schedule, int slots = 2);

}  // namespace ropewalk::schedule
