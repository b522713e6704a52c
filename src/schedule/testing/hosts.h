// Hosts of ranks, for tests of what needs them.
#pragma once

#include <string_view>
#include <vector>

#include "schedule/compile.h"

namespace ropewalk::schedule::testing {

/// Hosts with equally many ranks: ranks one after the other, or dealt out in turn.
inline std::vector<int> equal_hosts(int hosts, int ranks_per_host, bool in_turn = false) {
  std::vector<int> host_of_rank;
  for (int rank = 0; rank < hosts * ranks_per_host; ++rank) {
    host_of_rank.push_back(in_turn ? rank % hosts : rank / ranks_per_host);
  }
  return host_of_rank;
}

/// All ways to place so many ranks on at least two hosts, at least two on each.
inline std::vector<std::vector<int>> all_equal_hosts(int ranks) {
  std::vector<std::vector<int>> all;
  for (int hosts = 2; 2 * hosts <= ranks; ++hosts) {
    if (ranks % hosts != 0) continue;
    for (const bool in_turn : {false, true}) {
      all.push_back(equal_hosts(hosts, ranks / hosts, in_turn));
    }
  }
  return all;
}

/// The requests that differ from this one in hosts alone, for an algorithm that needs them; the
/// request itself for others. Only those that the algorithm supports.
inline std::vector<Request> with_hosts(const Algorithm& algorithm, const Request& request) {
  std::vector<Request> requests;
  if (algorithm.supports(request)) requests.push_back(request);
  if (algorithm.needs.empty()) return requests;
  for (std::vector<int>& hosts : all_equal_hosts(request.num_ranks)) {
    Request placed = request;
    placed.host_of_rank = std::move(hosts);
    if (algorithm.supports(placed)) requests.push_back(std::move(placed));
  }
  return requests;
}

}  // namespace ropewalk::schedule::testing
