// Facts that all ranks of a communicator have in common. Choices depend only on them and on the
// call, so all ranks choose identically without communicating.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tune/hybrid_links.h"

namespace ropewalk::tune {

struct GroupFacts {
  int num_ranks = 1;
  int num_hosts = 1;
  int max_ranks_per_host = 1;
  double ranks_per_processor = 1;  ///< at the most crowded processors; at most 1: none is shared
  bool all_by_address = false;     ///< every pair of ranks can copy from each other's memory
  bool same_process = false;       ///< all ranks are threads of one process
  std::size_t slot_bytes = 32768;
  std::size_t short_bytes = 1024;  ///< chunks of at most so many have slots of their own; 0: none
  std::size_t chunk_bytes = 0;     ///< that all but long messages are cut into; 0: slot_bytes
  /// Chunks that a link holds, where links take so long that steps which receive lag behind those
  /// which send (schedule/lags.h); 0: steps run round by round.
  std::uint32_t lag_slots = 0;
  int max_channels = 16;          ///< links exist for channels below this one
  std::vector<int> host_of_rank;  ///< where there are several hosts
  std::size_t joined_bytes = 0;   ///< DeviceProperties::joined_bytes, of the network between them
  /// Where each host has several NICs: what each rail (link/rails.h) carries, bytes/s, the fastest
  /// first. Channel c goes over rail c % rail_rates.size().
  std::vector<double> rail_rates;
  /// Where it has one, and several ranks of a host share it: what that carries; 0: not known.
  double nic_rate = 0;
  double nic_sharing_cost = 0;  ///< transport::DeviceProperties::sharing_cost
  /// GPUs: pairs of one host that are linked through its memory, where others have access to each
  /// other's. The lower rank first.
  std::vector<std::pair<int, int>> host_path_pairs;
  std::vector<int> ring_order;  ///< schedule::Request::order
  /// GPUs with access to each other's memory: some of max_channels may go through the host's memory
  /// beside the others.
  HybridLinks hybrid;
};

}  // namespace ropewalk::tune
