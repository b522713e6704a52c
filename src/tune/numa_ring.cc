#include "tune/numa_ring.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>
#include <tuple>

#include "tune/ring_search.h"

namespace ropewalk::tune {

int numa_changes(const RankSeats& seats, std::span<const int> order) {
  const std::size_t n = seats.host.size();
  const auto rank_at = [&](std::size_t i) {
    return order.empty() ? i % n : static_cast<std::size_t>(order[i % n]);
  };
  int sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t a = rank_at(i);
    const std::size_t b = rank_at(i + 1);
    const bool both_bound = seats.numa[a] >= 0 && seats.numa[b] >= 0;
    if (both_bound && seats.host[a] == seats.host[b] && seats.numa[a] != seats.numa[b]) ++sum;
  }
  return sum;
}

std::vector<int> ring_by_numa(const RankSeats& seats) {
  const auto n = static_cast<int>(seats.host.size());
  std::vector<int> by_host = ring_avoiding({}, n, seats.host);
  const int changes = numa_changes(seats, by_host);
  if (changes == 0) return by_host;
  std::set<int> unbound;  // hosts with a rank that is not bound to one node
  for (std::size_t r = 0; r < seats.host.size(); ++r) {
    if (seats.numa[r] < 0) unbound.insert(seats.host[r]);
  }
  std::vector<int> order(seats.host.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const bool bound = !unbound.contains(seats.host[r]);
    return std::tuple(seats.host[r], bound ? seats.numa[r] : -1, bound ? seats.core[r] : -1, rank);
  });
  return numa_changes(seats, order) < changes ? order : by_host;
}

}  // namespace ropewalk::tune
