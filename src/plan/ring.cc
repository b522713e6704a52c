#include "plan/ring.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <queue>

#include "core/error.h"
#include "core/index.h"
#include "core/interrupt.h"

namespace ropewalk::plan {

namespace {

constexpr int kHopsPerRing = 1 << 17;  // hops looked at before a search gives up
constexpr int kHopsInAll = 1 << 20;
constexpr int kMostRingRanks = 256;
constexpr int kMaxRings = 32;
/// Speeds per channel that NCCL tries, GB/s, from its lists for one and several nodes. The
/// capacities of the machine's own lanes are tried as well.
constexpr std::array kSpeeds = {60.0, 50.0, 48.0, 40.0, 30.0, 28.0, 25.0, 24.0,
                                20.0, 18.0, 15.0, 12.0, 11.0, 10.0, 9.0,  7.0,
                                6.0,  5.0,  4.0,  3.0,  2.4,  1.2,  0.24, 0.12};

struct Hop {
  std::vector<int> arcs;
  double left = 0;  // the least that any of its arcs has left
};

class Search {
 public:
  /// @param hops_left  that may still be looked at over all searches; counts down
  Search(const Network& network, double speed, int& hops_left)
      : network_(network), speed_(speed), hops_left_(hops_left), leaving_(at(network.num_nodes)) {
    for (std::size_t i = 0; i < network.arcs.size(); ++i) {
      left_.push_back(static_cast<double>(network.arcs[i].capacity));
      leaving_[at(network.arcs[i].from)].push_back(static_cast<int>(i));
    }
  }

  std::vector<Ring> run() {
    std::vector<Ring> out;
    while (static_cast<int>(out.size()) < kMaxRings) {
      Ring ring;
      // First the order of the channel before (all ranks in order for the first), then that order
      // backwards, which uses the other direction of its links; then free search.
      std::vector<int> order;
      for (int rank = 0; rank < network_.num_ranks(); ++rank) order.push_back(rank);
      if (!out.empty()) order = out.back().ranks;
      const std::vector<int> backwards_order(order.rbegin(), order.rend());
      if (!place(order, ring) && !place(backwards_order, ring)) {
        ring = Ring{{0}, {}};
        visited_.assign(at(network_.num_ranks()), false);
        visited_[0] = true;
        steps_ = 0;
        if (!extend(ring)) break;
      }
      out.push_back(std::move(ring));
    }
    return out;
  }

 private:
  /// The shortest path with the speed left on every link, the widest of several.
  [[nodiscard]] Hop hop(int from, int to) const {
    const int start = network_.ranks[at(from)];
    const int end = network_.ranks[at(to)];
    std::vector<int> distance(at(network_.num_nodes), -1);
    std::vector<int> entered_by(at(network_.num_nodes), -1);
    std::vector<double> width(at(network_.num_nodes), 0.0);
    std::queue<int> open;
    open.push(start);
    distance[at(start)] = 0;
    width[at(start)] = 1e300;
    while (!open.empty()) {
      const int node = open.front();
      open.pop();
      if (node == end) break;
      if (node != start && network_.is_rank(node)) continue;
      for (const int arc : leaving_[at(node)]) {
        const int next = network_.arcs[at(arc)].to;
        if (left_[at(arc)] + 1e-9 < speed_) continue;
        const double wide = std::min(width[at(node)], left_[at(arc)]);
        if (distance[at(next)] < 0) {
          distance[at(next)] = distance[at(node)] + 1;
          open.push(next);
        } else if (distance[at(next)] != distance[at(node)] + 1 || wide <= width[at(next)]) {
          continue;
        }
        width[at(next)] = wide;
        entered_by[at(next)] = arc;
      }
    }
    Hop out;
    if (distance[at(end)] < 0) return out;
    out.left = width[at(end)];
    for (int node = end; node != start; node = network_.arcs[at(entered_by[at(node)])].from) {
      out.arcs.push_back(entered_by[at(node)]);
    }
    std::reverse(out.arcs.begin(), out.arcs.end());
    return out;
  }

  void take(const Hop& hop, double amount) {
    for (const int arc : hop.arcs) left_[at(arc)] -= amount;
  }

  bool place(const std::vector<int>& order, Ring& ring) {
    std::vector<Hop> hops;
    for (std::size_t i = 0; i < order.size(); ++i) {
      hops.push_back(hop(order[i], order[(i + 1) % order.size()]));
      if (hops.back().arcs.empty()) {
        hops.pop_back();
        for (const Hop& placed : hops) take(placed, -speed_);
        return false;
      }
      take(hops.back(), speed_);
    }
    ring.ranks = order;
    for (Hop& placed : hops) ring.paths.push_back(std::move(placed.arcs));
    return true;
  }

  bool extend(Ring& ring) {
    if (steps_ > kHopsPerRing || hops_left_ <= 0) return false;
    check_stopped("planning");
    const int from = ring.ranks.back();
    if (ring.ranks.size() == at(network_.num_ranks())) {
      Hop last = hop(from, ring.ranks[0]);
      if (last.arcs.empty()) return false;
      take(last, speed_);
      ring.paths.push_back(std::move(last.arcs));
      return true;
    }
    std::vector<std::pair<int, Hop>> candidates;
    for (int to = 0; to < network_.num_ranks(); ++to) {
      if (visited_[at(to)]) continue;
      ++steps_;
      --hops_left_;
      Hop found = hop(from, to);
      if (!found.arcs.empty()) candidates.emplace_back(to, std::move(found));
    }
    // More bandwidth left, fewer links, then order.
    std::stable_sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
      return a.second.left != b.second.left ? a.second.left > b.second.left
                                            : a.second.arcs.size() < b.second.arcs.size();
    });
    for (const auto& [to, found] : candidates) {
      take(found, speed_);
      visited_[at(to)] = true;
      ring.ranks.push_back(to);
      ring.paths.push_back(found.arcs);
      if (extend(ring)) return true;
      ring.paths.pop_back();
      ring.ranks.pop_back();
      visited_[at(to)] = false;
      take(found, -speed_);
    }
    return false;
  }

  const Network& network_;
  double speed_;
  int& hops_left_;
  std::vector<double> left_;
  std::vector<std::vector<int>> leaving_;
  std::vector<bool> visited_;
  int steps_ = 0;
};

/// The ring as a chain that starts at `root`.
OutTree chain(const Ring& ring, int root, const Fraction& weight) {
  const std::size_t ranks = ring.ranks.size();
  const std::size_t start = static_cast<std::size_t>(
      std::find(ring.ranks.begin(), ring.ranks.end(), root) - ring.ranks.begin());
  OutTree out{root, weight, {}};
  for (std::size_t i = 0; i + 1 < ranks; ++i) {
    const std::size_t index = (start + i) % ranks;
    out.edges.push_back({ring.ranks[index], ring.ranks[(index + 1) % ranks], ring.paths[index]});
  }
  return out;
}

/// The same ring in the reversed network: the same links, used in the other direction.
Ring backwards(const Ring& ring) {
  Ring out;
  const std::size_t ranks = ring.ranks.size();
  for (std::size_t i = 0; i < ranks; ++i) {
    out.ranks.push_back(ring.ranks[ranks - 1 - i]);
    out.paths.push_back(ring.paths[(2 * ranks - 2 - i) % ranks]);
    std::reverse(out.paths.back().begin(), out.paths.back().end());
  }
  return out;
}

}  // namespace

RingSearch search_rings(const Network& network) {
  if (network.num_ranks() > kMostRingRanks) {
    throw Error(Errc::kInvalidArgument, "ring: {} GPUs; {} is the limit of the search",
                network.num_ranks(), kMostRingRanks);
  }
  std::vector<double> speeds;
  const double unit = network.unit.to_double();
  for (const double speed : kSpeeds) speeds.push_back(speed / unit);
  for (const Arc& arc : network.arcs) {
    for (const int parts : {1, 2}) {
      speeds.push_back(static_cast<double>(arc.capacity) / parts);
    }
  }
  std::sort(speeds.begin(), speeds.end(), std::greater<>());
  speeds.erase(std::unique(speeds.begin(), speeds.end()), speeds.end());
  RingSearch best;
  double best_rate = 0;
  int hops_left = kHopsInAll;
  for (const double speed : speeds) {
    std::vector<Ring> rings = Search(network, speed, hops_left).run();
    const double rate = speed * static_cast<double>(rings.size());
    if (rate > best_rate * (1 + 1e-9)) {
      best_rate = rate;
      best = {std::move(rings), speed * unit};
    }
  }
  if (best.rings.empty()) {
    throw Error(Errc::kInvalidArgument, "ring: there is no ring over all GPUs along these links");
  }
  return best;
}

std::vector<Tree> plan_ring(const Problem& problem) {
  const RingSearch found = search_rings(problem.network);
  return trees_of_rings(
      problem, found.rings,
      Fraction::from_decimal(found.speed_gbps, kCapacityDigits) / problem.network.unit);
}

std::vector<Tree> trees_of_rings(const Problem& problem, const std::vector<Ring>& rings,
                                 const Fraction& speed) {
  const Network& network = problem.network;
  const int ranks = network.num_ranks();
  std::vector<OutTree> forward;
  std::vector<OutTree> back;
  // What a ring carries past one link: the chains of all roots but one, or of the one root.
  const bool rooted = has_root(problem.collective);
  Fraction weight = rooted ? speed : speed / Fraction(ranks - 1);
  if (problem.collective == Collective::kAllReduce) weight /= 2;
  for (const Ring& ring : rings) {
    const Ring reverse = backwards(ring);
    for (int root = 0; root < ranks; ++root) {
      if (rooted && root != problem.root) continue;
      forward.push_back(chain(ring, root, weight));
      back.push_back(chain(reverse, root, weight));
    }
  }
  switch (problem.collective) {
    case Collective::kReduce:
    case Collective::kReduceScatter: return reduce_trees(network, back);
    case Collective::kAllReduce: return zip_trees(network, back, forward);
    default: return broadcast_trees(network, forward);
  }
}

}  // namespace ropewalk::plan
