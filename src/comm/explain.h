// Why a communicator runs an operation by the algorithm that it does.
#pragma once

#include <cstddef>
#include <string>

#include "core/types.h"

namespace ropewalk::comm {

class Communicator;

/// JSON: what each candidate algorithm should take for a message of `bytes` in host memory, by the
/// cost model (tune/cost_model.h), and which one runs.
///
/// `bytes` is the size as nccl-tests and `ropewalk bench -b` count it: that of the larger of a
/// rank's two buffers. Fields: operation, bytes, root (null without one), ranks, hosts, network
/// (the transport between hosts, null without), candidates[] (the cheapest first: algorithm,
/// channels, chunk_bytes, by_address, predicted_us), chosen, chosen_by ("cost model", "setting
/// ALGORITHM", "rwCommUseSchedule").
///
/// Local, and no operation: other ranks need not call.
/// @throws Error kInvalidArgument for a root that is not there, or an ALGORITHM that cannot do this
std::string explain(Communicator& comm, Collective collective, std::size_t bytes, int root);

}  // namespace ropewalk::comm
