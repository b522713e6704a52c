// Why a communicator runs an operation by the algorithm that it does.
#pragma once

#include <cstddef>
#include <string>

#include "core/types.h"

namespace ropewalk::comm {

class Communicator;

/// JSON: what each candidate algorithm should take for a message of `bytes`, on the GPUs' memory
/// where ranks have GPUs, else on the hosts', by the tuner's prices, and which one runs.
///
/// `bytes` is the size as nccl-tests and `ropewalk bench -b` count it: that of the larger of a
/// rank's two buffers. Fields: operation, bytes, root (null without one), ranks, hosts, network
/// (the transport between hosts, null without), machine (name, origin, fingerprint:
/// machine/machine.h), candidates[] (the cheapest first: algorithm, kind ("shape", or "plan" for
/// what was planned for this machine), channels, nic_rule, chunk_bytes, by_address, predicted_us,
/// algbw_gbps), chosen, chosen_by ("cost model", "setting ALGORITHM", "rwCommUseSchedule").
///
/// nic_gbps[]: what each NIC of a host carries, the fastest first; empty where that was not
/// measured. nic_rule: where hosts have several, the rule by which channels are on them
/// (tune::Candidate::nic_rule); else null. channel_nics[] of the chosen one, to the first rank of
/// another host: channel, nic (this rank's), share of the data, distance (link::Rails::distance()).
///
/// Where each rank has a GPU of the machine, found or described (Machine::planned): bound
/// {algbw_gbps, words} for operations that plans are made for, algbw_gbps of each candidate in the
/// limit of long messages, and limiting_links[] of the chosen one (link "a->b", type, capacity and
/// load in GB/s in that limit, the busiest of its links). Else null, null and []. Of GPUs that were
/// found these are the rates that discovery gives the links; prices have the measured ones.
///
/// planning: null where no plans take long to make, or the setting PLANNING is not background. Else
/// state ("under way"; "made", by this rank: all begin with them at one call; "in use"; "failed"),
/// algorithms[] (what they may add), later (what will be chosen; null but for "made"), from_call
/// (the number of the communicator's first call with them, once the ranks agree; else null).
///
/// copy_engines: whether copy engines make such a call in place of what was chosen, where its
/// output lies in a window that all ranks registered as symmetric (setting COPY_ENGINES).
///
/// Local, and no operation: other ranks need not call.
/// @throws Error kInvalidArgument for a root that is not there, or an ALGORITHM that cannot do this
std::string explain(Communicator& comm, Collective collective, std::size_t bytes, int root);

}  // namespace ropewalk::comm
