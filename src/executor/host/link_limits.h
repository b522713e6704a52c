// Rates and latencies of a memory link between two threads of this machine, measured with the
// executor itself.
#pragma once

#include <optional>
#include <vector>

namespace ropewalk::executor {

struct LinkLimits {
  double hop_seconds = 0;  ///< one way, 8 bytes, all work of both ends included
  /// One way, through slots, each end at work on its own core; from memory and to memory.
  double staged_bytes_per_second = 0;
};

/// Takes some 60 ms on two threads pinned to the first two of `cores`; nothing with fewer cores.
std::optional<LinkLimits> measure_link(const std::vector<int>& cores);

}  // namespace ropewalk::executor
