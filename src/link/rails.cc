#include "link/rails.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

namespace ropewalk::link {

std::vector<std::pair<int, int>> pair_nics(std::span<const Nic> a, std::span<const Nic> b) {
  struct Pair {
    int of_a;
    int of_b;
    double rate;
    bool one_fabric;
  };
  std::vector<Pair> all;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < b.size(); ++j) {
      all.push_back({static_cast<int>(i), static_cast<int>(j), std::min(a[i].rate, b[j].rate),
                     a[i].fabric != 0 && a[i].fabric == b[j].fabric});
    }
  }
  if (std::ranges::any_of(all, &Pair::one_fabric)) {
    std::erase_if(all, [](const Pair& pair) { return !pair.one_fabric; });
  }
  // Of equal pairs those of equal numbers, from both ends' sight.
  std::ranges::sort(all, {}, [](const Pair& pair) {
    return std::tuple(-pair.rate, std::abs(pair.of_a - pair.of_b), pair.of_a + pair.of_b,
                      pair.of_a);
  });
  std::vector<std::pair<int, int>> chosen;
  for (const Pair& pair : all) {
    const bool taken = std::ranges::any_of(chosen, [&](const std::pair<int, int>& other) {
      return other.first == pair.of_a || other.second == pair.of_b;
    });
    if (!taken) chosen.emplace_back(pair.of_a, pair.of_b);
  }
  return chosen;
}

Rails::Rails(std::vector<std::vector<Nic>> nics, std::span<const int> host_of_rank, int most)
    : nics_(std::move(nics)) {
  // Few of many ranks differ in their NICs, or hosts of one kind in theirs.
  std::map<std::vector<Nic>, std::set<int>> hosts;
  for (std::size_t r = 0; r < nics_.size(); ++r) hosts[nics_[r]].insert(host_of_rank[r]);
  auto fewest = static_cast<std::size_t>(std::max(1, most));
  for (auto a = hosts.begin(); a != hosts.end(); ++a) {
    for (auto b = a; b != hosts.end(); ++b) {
      // Of ranks of one host alone there is no network link.
      if (a->second.size() == 1 && a->second == b->second) continue;
      fewest = std::min(fewest, pair_nics(a->first, b->first).size());
    }
  }
  order_.resize(std::max<std::size_t>(fewest, 1));
  std::iota(order_.begin(), order_.end(), 0);
}

int Rails::device(int rank, int peer, int rail) const {
  if (nics_.empty()) return 0;
  // Both ends pair in one order, so that they find the same pairs.
  const auto [low, high] = std::minmax(rank, peer);
  const std::vector<std::pair<int, int>> pairs =
      pair_nics(nics_[static_cast<std::size_t>(low)], nics_[static_cast<std::size_t>(high)]);
  const auto place = static_cast<std::size_t>(order_[static_cast<std::size_t>(rail)]);
  if (place >= pairs.size()) return 0;  // of one host
  return rank == low ? pairs[place].first : pairs[place].second;
}

Rails Rails::reordered(std::span<const int> order) const {
  Rails result = *this;
  result.order_.clear();
  for (const int rail : order) {
    result.order_.push_back(order_[static_cast<std::size_t>(rail)]);
  }
  return result;
}

}  // namespace ropewalk::link
