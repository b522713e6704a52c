// An order of ranks for rings and chains in host memory that crosses the links between a host's
// NUMA nodes as seldom as possible.
#pragma once

#include <span>
#include <vector>

namespace ropewalk::tune {

/// Where the ranks run, by rank.
struct RankSeats {
  std::span<const int> host;  ///< hosts are numbered by their first ranks
  std::span<const int> numa;  ///< number of the NUMA node on its host; -1: not bound to one
  std::span<const int> core;  ///< the first one that the rank may run on
};

/// Hosts follow each other as numbered. Inside a host whose ranks are all bound to NUMA nodes,
/// ranks go by node, then core, then rank; so a ring enters and leaves each node once. Pure, so all
/// ranks find the same.
///
/// @return as ring_avoiding() without slow pairs where that changes NUMA nodes no more often; empty
/// where the ranks' own order is as good
std::vector<int> ring_by_numa(const RankSeats& seats);

/// Neighbours in `order`, around, that are on one host but on different NUMA nodes; `order` empty:
/// the ranks' own. Neighbours of which one is not bound do not count.
int numa_changes(const RankSeats& seats, std::span<const int> order);

}  // namespace ropewalk::tune
