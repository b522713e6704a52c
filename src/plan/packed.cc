#include "plan/packed.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "core/error.h"
#include "core/index.h"
#include "plan/bounds.h"
#include "plan/few_trees.h"
#include "plan/optimal.h"
#include "plan/peeling.h"

namespace ropewalk::plan {

namespace {

constexpr Capacity kMostEqualTrees = 24;
constexpr double kStep = 0.2;  // of the multiplicative weights: within some percent of the bound
// Where searches find ever new trees, their weights cannot be rounded to few: they end when so many
// trees were found, times the number of arcs that a search looks at.
constexpr std::size_t kMostSearchWork = 120'000;
constexpr int kMostPackedRanks = 64;
constexpr int kMostTrees = 64;         // more are never "few"
constexpr std::size_t kChannels = 16;  // a schedule has one for each tree

/// Whole units greedily: the trees with the largest weights first, each as many units as still fit.
/// @param unit  of one tree
FewTrees rounded(const Network& network, const FractionalPacking& packing, const Fraction& unit) {
  std::vector<std::size_t> order(packing.trees.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return packing.weights[a] > packing.weights[b];
  });
  std::vector<Fraction> left;
  for (const Arc& arc : network.arcs) left.emplace_back(arc.capacity);
  FewTrees out;
  for (const std::size_t i : order) {
    std::optional<Fraction::Integer> fits;
    for (const auto& [arc, times] : arc_uses(packing.trees[i])) {
      const Fraction::Integer here = (left[at(arc)] / (unit * Fraction(times))).floor();
      fits = fits.has_value() ? std::min(*fits, here) : here;
    }
    if (!fits.has_value() || *fits <= 0) continue;
    const Fraction weight = unit * Fraction(*fits);
    for (const auto& [arc, times] : arc_uses(packing.trees[i])) {
      left[at(arc)] -= weight * Fraction(times);
    }
    out.trees.push_back(packing.trees[i]);
    out.weights.push_back(weight);
    out.rate += weight;
  }
  return out;
}

/// The best packing of whole numbers of equal trees, `supplies` of them for each number: the least
/// number that comes near `bound`; with a limit on the number (not 0) the best within it. Links
/// must be equal in both directions.
std::vector<OutTree> equal_trees(const Network& network,
                                 const std::function<Supplies(Capacity)>& supplies,
                                 const Fraction& bound, int limit) {
  const Capacity most = limit > 0 ? std::min<Capacity>(limit, kMostEqualTrees) : kMostEqualTrees;
  const double enough = (limit > 0 ? 1 - 1e-9 : 1 - kPackedGap) * bound.to_double();
  Capacity chosen = 1;
  Fraction best = 0;
  for (Capacity count = 1; count <= most; ++count) {
    const Fraction rate = fixed_rate(network, supplies(count), bound);
    if (rate <= best) continue;
    best = rate;
    chosen = count;
    if (rate.to_double() >= enough) break;
  }
  return pack_fixed(network, supplies(chosen), bound);
}

/// The same number of trees for every rank.
std::vector<OutTree> equal_trees_of_all(const Network& network, int limit) {
  const auto supplies = [&](Capacity count) { return Supplies(at(network.num_ranks()), count); };
  return equal_trees(network, supplies,
                     all_gather_bound(network).rate * Fraction(network.num_ranks()), limit);
}

/// Exact packings with few trees, where there are such: they serve machines with many like
/// switches, among whose paths prices cannot choose. Needs links equal in both directions.
FewTrees whole_numbers(const Network& network, Collective collective, int root, int limit) {
  FewTrees out;
  if (!is_symmetric(network)) return out;
  if (collective == Collective::kBroadcast) {
    const auto supplies = [&](Capacity count) {
      Supplies of_root(at(network.num_ranks()), 0);
      of_root[at(root)] = count;
      return of_root;
    };
    for (OutTree& tree :
         equal_trees(network, supplies, broadcast_bound(network, root).rate, limit)) {
      out.rate += tree.weight;
      out.weights.push_back(tree.weight);
      out.trees.push_back({root, {}, std::move(tree.edges)});
    }
    return out;
  }
  // An all-reduce of pairs of a tree and itself upside down.
  const std::vector<int> twins = twin_arcs(network);
  const int for_each = limit > 0 ? std::max(1, limit / network.num_ranks()) : 0;
  for (OutTree& tree : equal_trees_of_all(network, for_each)) {
    out.rate += tree.weight / 2;
    out.weights.push_back(tree.weight / 2);
    TreePair pair{tree.root, tree.edges, std::move(tree.edges)};
    for (RoutedEdge& edge : pair.in) {
      for (int& arc : edge.arcs) arc = twins[at(arc)];
    }
    out.trees.push_back(std::move(pair));
  }
  return out;
}

/// The fewest trees found within kPackedGap of `bound`, else the best. With a limit on the number
/// of trees (not 0) the best within it, however many.
FewTrees fewest(const Network& network, Collective collective, int root, double bound, int limit) {
  const int most_trees = limit > 0 ? limit : kMostTrees;
  const double enough = (limit > 0 ? 1 - 1e-9 : 1 - kPackedGap) * bound;
  std::optional<FewTrees> best;
  const auto near = [&](const FewTrees& trees) { return trees.rate.to_double() >= enough; };
  // Of those that are near, the ones at the bound itself with trees enough for a channel each come
  // first: rings reach it on some machines.
  const auto rank_of = [&](const FewTrees& trees) {
    const bool full =
        trees.rate.to_double() >= (1 - 1e-9) * bound && trees.trees.size() <= kChannels;
    return std::tuple(!full, trees.trees.size(), Fraction(0) - trees.rate);
  };
  const auto offer = [&](FewTrees offered) {
    if (static_cast<int>(offered.trees.size()) > most_trees || offered.trees.empty()) return;
    const bool both_near = limit == 0 && near(offered) && best.has_value() && near(*best);
    const bool better = !best.has_value() ||
                        (both_near ? rank_of(offered) < rank_of(*best)
                                   : offered.rate > best->rate && !(limit == 0 && near(*best)));
    if (better) best = std::move(offered);
  };
  offer(whole_numbers(network, collective, root, limit));
  // Whole units of one lane: the greatest common divisor of the capacities that the trees use. An
  // all-reduce pair needs parts of a lane, as undirected trees do not pack whole lanes well.
  const std::size_t most_distinct = limit > 0 ? 0 : kMostSearchWork / network.arcs.size() + 1;
  const FractionalPacking packing =
      pack_by_weights(network, collective, root, kStep, most_distinct);
  if (most_distinct == 0 || packing.trees.size() < most_distinct) {
    Fraction::Integer lane = 0;
    for (const TreePair& tree : packing.trees) {
      for (const auto& [arc, times] : arc_uses(tree)) {
        lane = greatest_common_divisor(lane, network.arcs[at(arc)].capacity);
      }
    }
    for (const int parts : {1, 2, 3, 5, 7}) {
      offer(rounded(network, packing, Fraction(lane, parts)));
    }
  }
  offer(peeled_trees(network, collective, root, packing.trees, most_trees));
  double most_for_each = 0;  // of the numbers of trees that were tried
  for (const int count : {1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64}) {
    const bool had = best.has_value() && near(*best);
    if (count > most_trees ||
        (had && (limit > 0 || count >= static_cast<int>(best->trees.size())))) {
      break;
    }
    // Twice as many trees carry about twice as much, until links are full: numbers that are far too
    // small are not worth a search.
    constexpr double kHope = 1.5;
    if (limit == 0 && count > 4 && kHope * most_for_each * count < enough) continue;
    FewTrees found = few_trees(network, collective, root, count);
    most_for_each = std::max(most_for_each, found.rate.to_double() / count);
    offer(std::move(found));
  }
  if (limit > 0) offer(few_trees(network, collective, root, limit, true));
  RW_ASSERT(best.has_value());
  return std::move(*best);
}

std::vector<OutTree> out_trees(const FewTrees& found, bool in_side) {
  std::vector<OutTree> out;
  for (std::size_t i = 0; i < found.trees.size(); ++i) {
    const TreePair& pair = found.trees[i];
    out.push_back({pair.root, found.weights[i], in_side ? pair.in : pair.out});
  }
  return out;
}

/// All ranks are roots at once: as many trees for each as come near the bound, all of one weight.
std::vector<OutTree> packed_for_all(const Network& network, int limit) {
  if (is_symmetric(network)) return equal_trees_of_all(network, limit);
  const int most_trees = limit > 0 ? limit : kMostTrees;
  const double bound = (all_gather_bound(network).rate * Fraction(network.num_ranks())).to_double();
  FewTrees best = few_trees_of_all(network, 1);
  for (int count = 2; count <= std::min(most_trees, 8); count *= 2) {
    if (best.rate.to_double() >= (1 - kPackedGap) * bound) break;
    FewTrees more = few_trees_of_all(network, count);
    if (more.rate > best.rate) best = std::move(more);
  }
  return out_trees(best, false);
}

}  // namespace

FractionalPacking pack_by_weights(const Network& network, Collective collective, int root,
                                  double epsilon, std::size_t most_trees) {
  const auto arcs = static_cast<double>(network.arcs.size());
  // Lengths start at delta / capacity and grow by 1 + epsilon where a tree fills an arc; when the
  // cheapest tree has length 1, every tree that matters has been used enough.
  const double delta = (1 + epsilon) * std::pow((1 + epsilon) * arcs, -1 / epsilon);
  std::vector<double> lengths;
  for (const Arc& arc : network.arcs) lengths.push_back(delta / static_cast<double>(arc.capacity));
  FractionalPacking out;
  std::map<std::vector<std::pair<int, int>>, std::size_t> known;
  const bool mirrored = collective == Collective::kAllReduce && is_symmetric(network);
  for (;;) {
    const TreeFinder finder(network, lengths);
    const auto [tree, length] = collective == Collective::kBroadcast ? finder.out_tree(root)
                                : mirrored                           ? finder.mirrored()
                                                                     : finder.pair(root);
    ++out.searches;
    if (length >= 1 || (most_trees > 0 && out.trees.size() >= most_trees)) break;
    const std::vector<std::pair<int, int>> uses = arc_uses(tree);
    double narrow = 1e300;
    for (const auto& [arc, times] : uses) {
      narrow = std::min(narrow, static_cast<double>(network.arcs[at(arc)].capacity) / times);
    }
    for (const auto& [arc, times] : uses) {
      lengths[at(arc)] *=
          1 + epsilon * narrow * times / static_cast<double>(network.arcs[at(arc)].capacity);
    }
    const auto [index, fresh] = known.emplace(uses, out.trees.size());
    if (fresh) {
      out.trees.push_back(tree);
      out.weights.push_back(0);
    }
    out.weights[index->second] += narrow;
  }
  // All weights over the largest relative load: never less than the textbook factor.
  std::vector<double> load(network.arcs.size(), 0.0);
  for (std::size_t i = 0; i < out.trees.size(); ++i) {
    for (const auto& [arc, times] : arc_uses(out.trees[i])) {
      load[at(arc)] += out.weights[i] * times / static_cast<double>(network.arcs[at(arc)].capacity);
    }
  }
  const double worst = *std::max_element(load.begin(), load.end());
  for (double& weight : out.weights) weight /= worst;
  return out;
}

std::vector<Tree> plan_packed(const Problem& problem) {
  const Network& network = problem.network;
  if (network.num_ranks() > kMostPackedRanks) {
    throw Error(Errc::kInvalidArgument, "packed: {} GPUs; {} is the limit of the search",
                network.num_ranks(), kMostPackedRanks);
  }
  const int most = std::min(problem.trees_per_root, kMostTrees);
  switch (problem.collective) {
    case Collective::kBroadcast: {
      const double bound = broadcast_bound(network, problem.root).rate.to_double();
      return broadcast_trees(
          network,
          out_trees(fewest(network, Collective::kBroadcast, problem.root, bound, most), false));
    }
    case Collective::kReduce: {
      const Network back = reversed(network);
      const double bound = broadcast_bound(back, problem.root).rate.to_double();
      return reduce_trees(
          network,
          out_trees(fewest(back, Collective::kBroadcast, problem.root, bound, most), false));
    }
    case Collective::kAllGather: return broadcast_trees(network, packed_for_all(network, most));
    case Collective::kReduceScatter:
      return reduce_trees(network, packed_for_all(reversed(network), most));
    default: {
      const double bound = problem.program().bound.to_double();
      const FewTrees found = fewest(network, Collective::kAllReduce, problem.root, bound, most);
      return zip_trees(network, out_trees(found, true), out_trees(found, false));
    }
  }
}

}  // namespace ropewalk::plan
