// Third part of the checker: which sends may publish the user's buffer instead of copying.
#pragma once

#include <vector>

#include "schedule/check.h"
#include "schedule/symbolic_run.h"

namespace ropewalk::schedule {

/// Flags for one channel of an accepted schedule: [rank][step][send index].
///
/// What a send can publish: the output, when its step writes it or only copies it (`out -> 1`);
/// the input, when its step only copies that (`in -> 1`). It may, when no later step of the
/// sender writes over that memory, or when the receiver's step *happens before* the first such
/// write: by the order of steps within ranks, and from a step that sends a chunk to the step that
/// takes it. A step has read its operands before its own sends are visible, so both ends of the
/// chain may be the very steps that receive and write.
///
/// Chains count only if all their chunks are of the block in question: chunks of other blocks may
/// be empty in a round and skipped. Waiting for a free slot does not count either, so the flags
/// hold for every number of slots. Chunks of different rounds are disjoint memory, so one round is
/// enough; at the end of a call the executor must wait until published buffers were read.
std::vector<std::vector<std::vector<DirectSend>>> find_direct_sends(const Schedule& schedule,
                                                                    int channel, bool in_place,
                                                                    const Trace& trace);

}  // namespace ropewalk::schedule
