#include "tune/ring_search.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>

namespace ropewalk::tune {
namespace {

using Pairs = std::span<const std::pair<int, int>>;

// Ranks that the search may take a step to, all in all.
constexpr int kMostSteps = 100'000;

bool is_slow(Pairs slow, int a, int b) {
  const std::pair pair = std::minmax(a, b);
  return std::ranges::find(slow, std::pair<int, int>(pair)) != slow.end();
}

// Of the ranks of one host.
class Search {
 public:
  Search(Pairs slow, std::vector<int> ranks, bool closes)
      : ranks_(std::move(ranks)), n_(ranks_.size()), closes_(closes), slow_(n_ * n_) {
    for (std::size_t a = 0; a < n_; ++a) {
      for (std::size_t b = 0; b < n_; ++b) slow_[a * n_ + b] = is_slow(slow, ranks_[a], ranks_[b]);
    }
    best_.resize(n_);
    std::iota(best_.begin(), best_.end(), std::size_t{0});
    least_ = cost(best_);
  }

  std::vector<int> run() {
    // A ring may begin anywhere, a path not.
    for (std::size_t first = 0; first < (closes_ ? 1 : n_); ++first) {
      std::vector<std::size_t> path = {first};
      std::vector<bool> in_path(n_);
      in_path[first] = true;
      extend(path, in_path, 0);
    }
    std::vector<int> found;
    for (const std::size_t i : best_) found.push_back(ranks_[i]);
    return found;
  }

 private:
  [[nodiscard]] int at(std::size_t a, std::size_t b) const { return slow_[a * n_ + b] ? 1 : 0; }

  [[nodiscard]] int cost(const std::vector<std::size_t>& path) const {
    int sum = closes_ && n_ > 1 ? at(path.back(), path.front()) : 0;
    for (std::size_t i = 1; i < path.size(); ++i) sum += at(path[i - 1], path[i]);
    return sum;
  }

  void extend(std::vector<std::size_t>& path, std::vector<bool>& in_path, int so_far) {
    if (least_ == 0 || so_far >= least_ || steps_ >= kMostSteps) return;
    if (path.size() == n_) {
      const int all = cost(path);
      if (all < least_) {
        least_ = all;
        best_ = path;
      }
      return;
    }
    for (std::size_t next = 0; next < n_; ++next) {
      if (in_path[next]) continue;
      ++steps_;
      const int slow = at(path.back(), next);
      path.push_back(next);
      in_path[next] = true;
      extend(path, in_path, so_far + slow);
      in_path[next] = false;
      path.pop_back();
    }
  }

  std::vector<int> ranks_;  // by their indices here
  std::size_t n_;
  bool closes_;
  std::vector<bool> slow_;
  std::vector<std::size_t> best_;
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

int host_changes(std::span<const int> host_of_rank, std::span<const int> order) {
  if (host_of_rank.empty()) return 0;
  const auto host_at = [&](std::size_t i) {
    const std::size_t at = i % host_of_rank.size();
    return host_of_rank[order.empty() ? at : static_cast<std::size_t>(order[at])];
  };
  int sum = 0;
  for (std::size_t i = 0; i < host_of_rank.size(); ++i) sum += host_at(i) != host_at(i + 1) ? 1 : 0;
  return sum;
}

std::vector<int> ring_avoiding(Pairs slow_pairs, int num_ranks, std::span<const int> host_of_rank) {
  const int changes = host_changes(host_of_rank, {});
  if (slow_pairs.empty() && changes == 0) return {};
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
  const auto cost = [&](std::span<const int> of) {
    return std::pair(host_changes(host_of_rank, of), slow_neighbours(slow_pairs, num_ranks, of));
  };
  return cost(order) < cost({}) ? order : std::vector<int>();
}

}  // namespace ropewalk::tune
