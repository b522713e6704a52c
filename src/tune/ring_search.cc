#include "tune/ring_search.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>

namespace ropewalk::tune {
namespace {

using Pairs = std::span<const std::pair<int, int>>;

// Ranks that the search may take a step to, all in all.
constexpr int kMostSteps = 400'000;

bool is_slow(Pairs slow, int a, int b) {
  const std::pair pair = std::minmax(a, b);
  return std::ranges::find(slow, std::pair<int, int>(pair)) != slow.end();
}

// Of the ranks of one host.
class Search {
 public:
  Search(Pairs slow, std::vector<int> ranks, bool closes)
      : slow_(slow), ranks_(std::move(ranks)), closes_(closes), best_(ranks_) {
    least_ = cost(best_);
  }

  std::vector<int> run() {
    std::vector<int> path = {ranks_.front()};
    // A ring may begin anywhere, a path not.
    for (std::size_t first = 0; first < (closes_ ? 1 : ranks_.size()); ++first) {
      path = {ranks_[first]};
      extend(path, 0);
    }
    return best_;
  }

 private:
  [[nodiscard]] int cost(const std::vector<int>& path) const {
    int sum = closes_ && path.size() > 1 && is_slow(slow_, path.back(), path.front()) ? 1 : 0;
    for (std::size_t i = 1; i < path.size(); ++i) sum += is_slow(slow_, path[i - 1], path[i]);
    return sum;
  }

  void extend(std::vector<int>& path, int so_far) {
    if (least_ == 0 || so_far >= least_ || steps_ >= kMostSteps) return;
    if (path.size() == ranks_.size()) {
      const int all = cost(path);
      if (all < least_) {
        least_ = all;
        best_ = path;
      }
      return;
    }
    for (const int next : ranks_) {
      if (std::ranges::find(path, next) != path.end()) continue;
      ++steps_;
      const int slow = is_slow(slow_, path.back(), next) ? 1 : 0;
      path.push_back(next);
      extend(path, so_far + slow);
      path.pop_back();
    }
  }

  Pairs slow_;
  std::vector<int> ranks_;
  bool closes_;
  std::vector<int> best_;
  int least_ = 0;
  int steps_ = 0;
};

}  // namespace

int slow_neighbours(Pairs slow_pairs, int num_ranks, std::span<const int> order) {
  const auto at = [&](int i) {
    return order.empty() ? i % num_ranks : order[static_cast<std::size_t>(i % num_ranks)];
  };
  int sum = 0;
  // Two ranks are one pair, though a ring passes it twice.
  for (int i = 0; i < (num_ranks > 2 ? num_ranks : num_ranks - 1); ++i) {
    sum += is_slow(slow_pairs, at(i), at(i + 1)) ? 1 : 0;
  }
  return sum;
}

std::vector<int> ring_avoiding(Pairs slow_pairs, int num_ranks, std::span<const int> host_of_rank) {
  if (slow_pairs.empty()) return {};
  std::map<int, int> number_of_host;  // in the order of their first ranks
  std::vector<std::vector<int>> hosts;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int host = host_of_rank.empty() ? 0 : host_of_rank[static_cast<std::size_t>(rank)];
    const auto [entry, is_new] = number_of_host.emplace(host, static_cast<int>(hosts.size()));
    if (is_new) hosts.emplace_back();
    hosts[static_cast<std::size_t>(entry->second)].push_back(rank);
  }
  std::vector<int> order;
  for (std::vector<int>& ranks : hosts) {
    const std::vector<int> found = Search(slow_pairs, std::move(ranks), hosts.size() == 1).run();
    order.insert(order.end(), found.begin(), found.end());
  }
  const bool gains =
      slow_neighbours(slow_pairs, num_ranks, order) < slow_neighbours(slow_pairs, num_ranks, {});
  return gains ? order : std::vector<int>();
}

}  // namespace ropewalk::tune
