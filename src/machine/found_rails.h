// The rails of a communicator: its hosts' NICs, found and measured while joining.
//
// Every rank sends the devices of its transport. Where each host has several, or several ranks
// share one, their rates are measured once for a set of NICs in a process's life: the first ranks
// of the hosts, in a ring, send over all rails at once for some tens of milliseconds, since the
// rate that a driver states is often not that of the network, and virtual interfaces state none. A
// rail's rate is the lowest that any host measured.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "core/settings.h"
#include "link/rails.h"
#include "machine/known_rates.h"
#include "machine/machine.h"
#include "transport/transport.h"

namespace ropewalk::machine {

/// NICs of a host that are used at once, at most.
inline constexpr int kMostRails = 16;

struct FoundRails {
  link::Rails rails;
  /// Bytes/s of each rail, the fastest first; empty where there is one.
  std::vector<double> rates;
  /// Where there is one rail and its rate is wanted: bytes/s; else 0.
  double rate_of_one = 0;
  double sharing_cost = 0;  ///< of rank 0's devices
};

/// Collective over all ranks of several hosts, and equal on all. A rail that cannot be connected,
/// or is slower than a thirty-second of the fastest, is left out, with a line of rank 0's log.
/// @param machine  where a person described it, to know which NICs are near which ranks; else null:
///                 by NUMA node
/// @param most     rails at most, as there are channels for
/// @param one_too  the rate of a single rail is wanted, unless it is between hosts of one address;
///                 the same on all ranks
/// @param waiting  called while others are waited for; may throw
/// @throws Error kTimeout at the deadline; as Bootstrap's collectives
FoundRails find_rails(bootstrap::Bootstrap& bootstrap, const Config& config, KnownRates& known,
                      transport::Transport& transport, const Machine* machine,
                      std::span<const int> host_of_rank, int most, bool one_too, Deadline deadline,
                      const std::function<void()>& waiting);

/// Those of this rank that rails are made of.
std::vector<transport::DeviceProperties> devices_of(const transport::Transport& transport);

/// The same rails, those first that are nearest to the ranks' GPUs. Collective over all ranks.
/// @param nearby this rank's devices, seen from its GPU (nic_places.h)
/// @throws as Bootstrap's collectives
link::Rails rails_near_gpus(bootstrap::Bootstrap& bootstrap, const link::Rails& rails,
                            std::span<const link::NicPosition> nearby, Deadline deadline);

}  // namespace ropewalk::machine
