// How fast each rail is, by sending over all of them at once.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "link/rails.h"
#include "transport/transport.h"

namespace ropewalk::machine {

/// The first rank of each host, in order.
std::vector<int> first_ranks(std::span<const int> host_of_rank);

/// Called by all ranks; those that are no `leaders` return at once, with nothing. Each of these
/// sends to the next one and receives from the one before, over all rails, and measures what
/// arrives, in spans of 40 ms after the first 10 of each rail (networks let a burst pass that they
/// do not sustain), until two spans differ by less than a twentieth, at most 8, or 3 of a single
/// rail.
/// @return bytes/s by rail; 0 of one that does not connect within two seconds, or breaks
/// @throws Error kTimeout at the deadline; what `waiting` throws
std::vector<double> measure_rails(bootstrap::Bootstrap& bootstrap, transport::Transport& transport,
                                  const link::Rails& rails, std::span<const int> leaders,
                                  Deadline deadline, const std::function<void()>& waiting);

}  // namespace ropewalk::machine
