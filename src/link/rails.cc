#include "link/rails.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

namespace ropewalk::link {

std::vector<std::pair<int, int>> possible_pairs(std::span<const Nic> a, std::span<const Nic> b) {
  struct Pair {
    int of_a;
    int of_b;
    double rate;
    bool one_fabric;
    bool one_address;
  };
  std::vector<Pair> all;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < b.size(); ++j) {
      const bool one_fabric = a[i].fabric != 0 && a[i].fabric == b[j].fabric;
      all.push_back({static_cast<int>(i), static_cast<int>(j), std::min(a[i].rate, b[j].rate),
                     one_fabric, one_fabric && a[i].address != 0 && a[i].address == b[j].address});
    }
  }
  if (!std::ranges::all_of(all, &Pair::one_address))
    std::erase_if(all, [](const Pair& pair) { return pair.one_address; });
  if (std::ranges::any_of(all, &Pair::one_fabric)) {
    std::erase_if(all, [](const Pair& pair) { return !pair.one_fabric; });
  }
  // Of equal pairs those of equal numbers, from both ends' sight.
  std::ranges::sort(all, {}, [](const Pair& pair) {
    return std::tuple(-pair.rate, std::abs(pair.of_a - pair.of_b), pair.of_a + pair.of_b,
                      pair.of_a);
  });
  std::vector<std::pair<int, int>> pairs;
  for (const Pair& pair : all) pairs.emplace_back(pair.of_a, pair.of_b);
  return pairs;
}

std::vector<std::pair<int, int>> pair_nics(std::span<const Nic> a, std::span<const Nic> b) {
  std::vector<std::pair<int, int>> chosen;
  for (const std::pair<int, int>& pair : possible_pairs(a, b)) {
    const bool taken = std::ranges::any_of(chosen, [&](const std::pair<int, int>& other) {
      return other.first == pair.first || other.second == pair.second;
    });
    if (!taken) chosen.push_back(pair);
  }
  return chosen;
}

Rails::Rails(std::vector<std::vector<Nic>> nics, std::span<const int> host_of_rank, int most,
             std::vector<std::vector<NicPosition>> positions)
    : nics_(std::move(nics)), positions_(std::move(positions)) {
  // Few of many ranks differ in their NICs, or hosts of one kind in theirs.
  std::map<std::vector<Nic>, std::set<int>> hosts;
  for (std::size_t r = 0; r < nics_.size(); ++r) hosts[nics_[r]].insert(host_of_rank[r]);
  auto fewest = static_cast<std::size_t>(std::max(1, most));
  for (auto a = hosts.begin(); a != hosts.end(); ++a) {
    for (auto b = a; b != hosts.end(); ++b) {
      // Of ranks of one host alone there is no network link.
      if (a->second.size() == 1 && a->second == b->second) continue;
      const std::size_t pairs = pair_nics(a->first, b->first).size();
      if (pairs > fewest) all_ = false;
      fewest = std::min(fewest, pairs);
    }
  }
  order_.resize(std::max<std::size_t>(fewest, 1));
  std::iota(order_.begin(), order_.end(), 0);
}

// By rail.
std::vector<Rails::Pair> Rails::pairs_of(int rank, int peer) const {
  // Both ends pair in one order, so that they find the same pairs.
  const int low = std::min(rank, peer);
  const int high = std::max(rank, peer);
  const std::vector<std::pair<int, int>> paired =
      pair_nics(nics_[static_cast<std::size_t>(low)], nics_[static_cast<std::size_t>(high)]);
  std::vector<std::pair<int, int>> by_rail;
  for (const int index : order_) {
    const auto p = static_cast<std::size_t>(index);
    by_rail.push_back(p < paired.size() ? paired[p] : std::pair(0, 0));  // of one host
  }
  if (!positions_.empty()) {
    auto first = by_rail.begin();
    for (const int count : alike_) {
      std::ranges::stable_sort(first, first + count, {}, [&](const std::pair<int, int>& pair) {
        return distance_of(low, high, {pair.first, pair.second});
      });
      first += count;
    }
  }
  std::vector<Pair> pairs;
  for (const auto& [of_low, of_high] : by_rail) {
    pairs.push_back(rank == low ? Pair{of_low, of_high} : Pair{of_high, of_low});
  }
  return pairs;
}

int Rails::distance_of(int rank, int peer, const Pair& pair) const {
  const auto of = [&](int end, int device) {
    return positions_[static_cast<std::size_t>(end)][static_cast<std::size_t>(device)].distance;
  };
  return of(rank, pair.own) + of(peer, pair.peers);
}

int Rails::distance(int rank, int peer, int rail) const {
  return positions_.empty() ? 0 : distance_of(rank, peer, pair(rank, peer, rail));
}

Rails::Pair Rails::pair(int rank, int peer, int rail) const {
  if (nics_.empty()) return {};
  return pairs_of(rank, peer)[static_cast<std::size_t>(rail)];
}

std::optional<Rails::Pair> Rails::through(int rank, int peer, int own_node, int peer_node,
                                          int sender) const {
  if (positions_.empty()) return std::nullopt;
  const auto device_at = [&](int of_rank, int node) {
    const std::vector<NicPosition>& positions = positions_[static_cast<std::size_t>(of_rank)];
    const auto found = std::ranges::find(positions, node, &NicPosition::node);
    return node < 0 || found == positions.end() ? -1 : static_cast<int>(found - positions.begin());
  };
  const Pair wanted{device_at(rank, own_node), device_at(peer, peer_node)};
  if (all_ && wanted.own >= 0 && wanted.peers >= 0) {
    const int low = std::min(rank, peer);
    const int high = std::max(rank, peer);
    const auto possible =
        possible_pairs(nics_[static_cast<std::size_t>(low)], nics_[static_cast<std::size_t>(high)]);
    const std::pair<int, int> pair =
        rank == low ? std::pair(wanted.own, wanted.peers) : std::pair(wanted.peers, wanted.own);
    if (std::ranges::find(possible, pair) != possible.end()) return wanted;
  }
  for (const Pair& pair : pairs_of(rank, peer)) {
    if ((sender == rank ? pair.own : pair.peers) == (sender == rank ? wanted.own : wanted.peers)) {
      return pair;
    }
  }
  return std::nullopt;
}

Rails Rails::placed(std::vector<std::vector<NicPosition>> positions) const {
  Rails result = *this;
  result.positions_ = std::move(positions);
  return result;
}

Rails Rails::reordered(std::span<const int> order, std::span<const int> alike) const {
  Rails result = *this;
  result.order_.clear();
  for (const int rail : order) {
    result.order_.push_back(order_[static_cast<std::size_t>(rail)]);
  }
  result.alike_.assign(alike.begin(), alike.end());
  result.all_ = all_ && order.size() == order_.size();
  return result;
}

}  // namespace ropewalk::link
