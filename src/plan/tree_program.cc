#include "plan/tree_program.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>

#include "core/error.h"
#include "core/index.h"
#include "plan/arborescence.h"
#include "plan/closure.h"
#include "plan/optimal.h"
#include "plan/simplex.h"

namespace ropewalk::plan {

namespace {

/// Ranks from the root outwards, with their parents.
std::vector<std::pair<int, int>> from_root(const std::vector<int>& parents, int root) {
  std::vector<std::vector<int>> children(parents.size());
  for (std::size_t rank = 0; rank < parents.size(); ++rank) {
    if (parents[rank] >= 0) {
      children[at(parents[rank])].push_back(static_cast<int>(rank));
    }
  }
  std::vector<int> order{root};
  std::vector<std::pair<int, int>> out;
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (const int child : children[at(order[i])]) {
      out.emplace_back(order[i], child);
      order.push_back(child);
    }
  }
  return out;
}

/// The same undirected tree hung up at the node that is nearest to all.
std::vector<int> hung_at_middle(const std::vector<int>& parents, int& root) {
  const int ranks = static_cast<int>(parents.size());
  std::vector<std::vector<int>> next(at(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    if (parents[at(rank)] >= 0) {
      next[at(rank)].push_back(parents[at(rank)]);
      next[at(parents[at(rank)])].push_back(rank);
    }
  }
  const auto walk = [&](int start) {
    std::vector<int> above(at(ranks), -1);
    std::vector<int> order{start};
    for (std::size_t i = 0; i < order.size(); ++i) {
      for (const int rank : next[at(order[i])]) {
        if (rank != above[at(order[i])]) {
          above[at(rank)] = order[i];
          order.push_back(rank);
        }
      }
    }
    return std::pair(order.back(), above);
  };
  const int end = walk(root).first;
  const auto [other_end, above] = walk(end);
  std::vector<int> path{other_end};
  while (path.back() != end) {
    path.push_back(above[at(path.back())]);
  }
  root = path[path.size() / 2];
  return walk(root).second;
}

/// How often a tree passes each row: an arc, or a class of arcs.
std::vector<std::pair<int, int>> row_uses(const TreePair& tree, const Symmetry* symmetry) {
  if (symmetry == nullptr) return arc_uses(tree);
  std::map<int, int> uses;
  for (const auto& [arc, times] : arc_uses(tree)) uses[symmetry->arc_class[at(arc)]] += times;
  return {uses.begin(), uses.end()};
}

/// Takes off what rounding left the trees of some roots above the others: all_gather needs the same
/// rate for every root.
void level_roots(const std::vector<TreePair>& trees, const std::vector<int>& root_class,
                 std::vector<Fraction>& weights) {
  std::map<int, Fraction> members;
  for (const int first : root_class) members[first] += Fraction(1);
  std::map<int, Fraction> sum;
  for (const auto& [first, count] : members) sum[first] = 0;
  for (std::size_t i = 0; i < trees.size(); ++i) {
    sum[root_class[at(trees[i].root)]] += weights[i];
  }
  std::optional<Fraction> least;
  for (const auto& [first, total] : sum) {
    const Fraction each = total / members[first];
    if (!least.has_value() || each < *least) least = each;
  }
  for (auto& [first, total] : sum) {
    Fraction surplus = total - *least * members[first];
    for (std::size_t i = 0; i < trees.size() && surplus > Fraction(0); ++i) {
      if (root_class[at(trees[i].root)] != first) continue;
      const Fraction taken = std::min(surplus, weights[i]);
      weights[i] -= taken;
      surplus -= taken;
    }
  }
}

}  // namespace

struct TreeFinder::Parts {
  Parts(const Network& network, const std::vector<double>& prices, const Symmetry* symmetry)
      : closure(network, prices, symmetry), backwards(network.num_ranks()) {
    const CostMatrix& costs = closure.costs();
    for (int a = 0; a < costs.ranks(); ++a) {
      for (int b = 0; b < costs.ranks(); ++b) {
        backwards(b, a) = costs(a, b);
      }
    }
  }

  [[nodiscard]] std::vector<RoutedEdge> routed(const std::vector<int>& parents, int root,
                                               bool reversed) const {
    std::vector<RoutedEdge> out;
    for (const auto& [parent, child] : from_root(parents, root)) {
      RoutedEdge edge{parent, child, {}};
      edge.arcs = reversed ? closure.path(child, parent) : closure.path(parent, child);
      if (reversed) {
        std::reverse(edge.arcs.begin(), edge.arcs.end());
      }
      out.push_back(std::move(edge));
    }
    return out;
  }

  Closure closure;
  CostMatrix backwards;
};

TreeFinder::TreeFinder(const Network& network, const std::vector<double>& prices,
                       const Symmetry* symmetry)
    : parts_(new Parts(network, prices, symmetry)) {}

TreeFinder::~TreeFinder() { delete parts_; }

std::pair<TreePair, double> TreeFinder::out_tree(int root) const {
  const std::vector<int> parents = cheapest_out_tree(parts_->closure.costs(), root);
  return {{root, {}, parts_->routed(parents, root, false)},
          cost_of(parts_->closure.costs(), parents)};
}

std::pair<TreePair, double> TreeFinder::pair(int root) const {
  auto [out, cost] = out_tree(root);
  const std::vector<int> parents = cheapest_out_tree(parts_->backwards, root);
  out.in = parts_->routed(parents, root, true);
  return {std::move(out), cost + cost_of(parts_->backwards, parents)};
}

std::pair<TreePair, double> TreeFinder::mirrored() const {
  CostMatrix both = parts_->closure.costs();
  for (int a = 0; a < both.ranks(); ++a) {
    for (int b = 0; b < both.ranks(); ++b) {
      if (a != b && both(a, b) < CostMatrix::kUnreachable) {
        both(a, b) += parts_->backwards(a, b);
      }
    }
  }
  int root = 0;
  std::vector<int> parents = cheapest_out_tree(both, root);
  const double cost = cost_of(both, parents);
  parents = hung_at_middle(parents, root);
  return {{root, parts_->routed(parents, root, true), parts_->routed(parents, root, false)}, cost};
}

std::vector<std::pair<int, int>> arc_uses(const TreePair& tree) {
  std::map<int, int> uses;
  for (const std::vector<RoutedEdge>* edges : {&tree.in, &tree.out}) {
    for (const RoutedEdge& edge : *edges) {
      for (const int arc : edge.arcs) {
        ++uses[arc];
      }
    }
  }
  return {uses.begin(), uses.end()};
}

Fraction simplest_near(double value, double tolerance) {
  // Convergents of the continued fraction, until one is close enough.
  Fraction::Integer before_p = 0;
  Fraction::Integer before_q = 1;
  Fraction::Integer p = 1;
  Fraction::Integer q = 0;
  double rest = value;
  for (int i = 0; i < 40; ++i) {
    const double whole = std::floor(rest);
    const auto digit = static_cast<Fraction::Integer>(whole);
    const Fraction::Integer next_p = digit * p + before_p;
    const Fraction::Integer next_q = digit * q + before_q;
    before_p = p;
    before_q = q;
    p = next_p;
    q = next_q;
    const double here = static_cast<double>(p) / static_cast<double>(q);
    if (std::fabs(here - value) <= tolerance * value || rest - whole < 1e-12) {
      break;
    }
    rest = 1 / (rest - whole);
  }
  return Fraction(p, q);
}

std::vector<Fraction> exact_weights(const Network& network, const std::vector<TreePair>& trees,
                                    const std::vector<double>& amounts, const Symmetry* symmetry) {
  const double total = std::accumulate(amounts.begin(), amounts.end(), 0.0);
  std::vector<Fraction> limit;
  if (symmetry == nullptr) {
    for (const Arc& arc : network.arcs) limit.emplace_back(arc.capacity);
  } else {
    limit.assign(symmetry->arc_class_size.size(), 0);
    for (std::size_t arc = 0; arc < network.arcs.size(); ++arc) {
      limit[at(symmetry->arc_class[arc])] += Fraction(network.arcs[arc].capacity);
    }
  }
  std::vector<std::vector<std::pair<int, int>>> uses;
  for (const TreePair& tree : trees) uses.push_back(row_uses(tree, symmetry));
  const auto fits = [&](const std::vector<Fraction>& weights) {
    std::vector<Fraction> load(limit.size(), 0);
    for (std::size_t i = 0; i < trees.size(); ++i) {
      for (const auto& [row, times] : uses[i]) {
        load[at(row)] += weights[i] * Fraction(times);
      }
    }
    for (std::size_t row = 0; row < load.size(); ++row) {
      if (load[row] > limit[row]) {
        return false;
      }
    }
    return true;
  };
  std::vector<Fraction> out;
  for (const double amount : amounts) {
    out.push_back(amount <= total * 1e-7 ? Fraction(0) : simplest_near(amount, 2e-7));
  }
  // Only fractions that small denominators explain are more than a guess.
  Fraction::Integer common = 1;
  for (const Fraction& weight : out) {
    common *= weight.denominator() / greatest_common_divisor(common, weight.denominator());
    if (common > 1000000) {
      break;
    }
  }
  if (common <= 1000000 && fits(out)) {
    return out;
  }
  constexpr std::int64_t kGrain = 1'000'000'000;
  out.clear();
  for (const double amount : amounts) {
    const double kept = std::max(0.0, amount * (1 - 1e-9) * 1e9 / total - 1);
    out.push_back(simplest_near(total, 1e-10) * Fraction(static_cast<std::int64_t>(kept), kGrain));
  }
  RW_ASSERT(fits(out));
  return out;
}

std::vector<double> best_weights(const Network& network, const std::vector<TreePair>& trees) {
  std::vector<double> limits;
  for (const Arc& arc : network.arcs) {
    limits.push_back(static_cast<double>(arc.capacity));
  }
  std::vector<Column> columns;
  for (const TreePair& tree : trees) {
    Column column{{}, 1};
    for (const auto& [arc, times] : arc_uses(tree)) {
      column.entries.emplace_back(arc, times);
    }
    columns.push_back(std::move(column));
  }
  std::vector<int> made;
  const LinearSolution solution =
      maximise(limits, [&](const std::vector<double>& prices) -> std::optional<Column> {
        int best = -1;
        double gain = 1e-10;
        for (std::size_t i = 0; i < columns.size(); ++i) {
          double worth = 1;
          for (const auto& [arc, times] : columns[i].entries) {
            worth -= prices[at(arc)] * times;
          }
          if (worth > gain) {
            gain = worth;
            best = static_cast<int>(i);
          }
        }
        if (best < 0) {
          return std::nullopt;
        }
        made.push_back(best);
        return columns[at(best)];
      });
  std::vector<double> out(trees.size(), 0.0);
  for (std::size_t i = 0; i < solution.amounts.size(); ++i) {
    out[at(made[i])] += solution.amounts[i];
  }
  return out;
}

TreePair image_of(const Network& network, const ArcImages& arcs, const std::vector<int>& renaming,
                  const TreePair& tree) {
  const auto rank = [&](int from) {
    return network.rank_of_node[at(renaming[at(network.ranks[at(from)])])];
  };
  TreePair out = tree;
  out.root = rank(tree.root);
  for (std::vector<RoutedEdge>* edges : {&out.in, &out.out}) {
    for (RoutedEdge& edge : *edges) {
      edge.parent = rank(edge.parent);
      edge.child = rank(edge.child);
      for (int& arc : edge.arcs) arc = arcs.image(renaming, arc);
    }
  }
  return out;
}

TreeProgramSolution solve_tree_program(const Network& network, Collective collective, int root,
                                       const Symmetry* symmetry) {
  if (symmetry != nullptr && (symmetry->is_trivial() || collective == Collective::kBroadcast)) {
    symmetry = nullptr;
  }
  const int ranks = network.num_ranks();
  const int arcs = static_cast<int>(network.arcs.size());
  // A row per class of arcs; without symmetry every arc is a class.
  const int rows = symmetry != nullptr ? symmetry->num_arc_classes() : arcs;
  std::vector<int> root_class(at(ranks));
  std::iota(root_class.begin(), root_class.end(), 0);
  if (symmetry != nullptr) root_class = symmetry->rank_class;
  std::vector<int> roots;  // one of every class
  for (int rank = 0; rank < ranks; ++rank) {
    if (root_class[at(rank)] == rank) roots.push_back(rank);
  }
  const bool gather = collective == Collective::kAllGather;
  const bool mirrored = collective == Collective::kAllReduce && is_symmetric(network);

  std::vector<double> limits;
  double scale = 0;  // capacities around 1 keep the arithmetic accurate
  for (const Arc& arc : network.arcs) {
    scale = std::max(scale, static_cast<double>(arc.capacity));
  }
  limits.assign(at(rows), 0.0);
  for (int arc = 0; arc < arcs; ++arc) {
    const int row = symmetry != nullptr ? symmetry->arc_class[at(arc)] : arc;
    limits[at(row)] += static_cast<double>(network.arcs[at(arc)].capacity) / scale;
  }
  // All-gather: one more row per class of ranks holds their common rate below the sum of their
  // trees.
  limits.resize(at(rows) + (gather ? roots.size() : 0), 0.0);
  const auto rate_row = [&](int rank) {
    const auto index = std::lower_bound(roots.begin(), roots.end(), root_class[at(rank)]);
    return rows + static_cast<int>(index - roots.begin());
  };

  std::vector<TreePair> trees;
  std::vector<int> tree_of_column;
  int favourite = 0;  // index in `roots` of the one that was last worth it
  const auto price_only = [&](const std::vector<double>& prices) {
    std::vector<double> out(at(arcs));
    for (int arc = 0; arc < arcs; ++arc) {
      out[at(arc)] = prices[at(symmetry != nullptr ? symmetry->arc_class[at(arc)] : arc)];
    }
    return out;
  };
  constexpr double kBreak = 1e-3;  // worth enough not to look at further roots
  const auto cheapest = [&](const std::vector<double>& prices) {
    // Returns the tree with its gain: what a unit of it earns above its cost.
    const TreeFinder finder(network, price_only(prices), symmetry);
    std::pair<TreePair, double> best;
    double best_gain = -1;
    const auto offer = [&](std::pair<TreePair, double> tree, double worth) {
      if (worth - tree.second > best_gain) {
        best_gain = worth - tree.second;
        best = std::move(tree);
      }
    };
    if (mirrored) {
      offer(finder.mirrored(), 1);
    } else if (collective == Collective::kBroadcast) {
      offer(finder.out_tree(root), 1);
    } else {
      const int count = static_cast<int>(roots.size());
      for (int step = 0; step < count; ++step) {
        const int index = (favourite + step) % count;
        const int tried = roots[at(index)];
        if (gather) {
          offer(finder.out_tree(tried), prices[at(rate_row(tried))]);
        } else {
          offer(finder.pair(tried), 1);
        }
        if (best_gain > kBreak) {
          favourite = (index + (gather ? 1 : 0)) % count;
          break;
        }
      }
    }
    return std::pair(std::move(best.first), best_gain);
  };
  // Any prices prove a bound, once the cheapest tree at them is known: keep the best of all rounds.
  double best_bound = 1e300;
  std::vector<double> best_prices;
  const LinearSolution solution =
      maximise(limits, [&](const std::vector<double>& prices) -> std::optional<Column> {
        if (gather && tree_of_column.empty()) {
          Column rate{{}, static_cast<double>(ranks)};
          for (int rank = 0; rank < ranks; ++rank) {
            rate.entries.emplace_back(rate_row(rank), 1.0);
          }
          tree_of_column.push_back(-1);
          return rate;
        }
        auto [tree, gain] = cheapest(prices);
        if (!gather && gain < 1 &&
            (mirrored || collective == Collective::kBroadcast || gain <= kBreak)) {
          double value = 0;
          for (int row = 0; row < rows; ++row) {
            value += prices[at(row)] * limits[at(row)];
          }
          if (value / (1 - gain) < best_bound) {
            best_bound = value / (1 - gain);
            best_prices = price_only(prices);
          }
        }
        if (gain <= 1e-9) {
          return std::nullopt;
        }
        Column column{{}, gather ? 0.0 : 1.0};
        for (const auto& [row, times] : row_uses(tree, symmetry)) {
          column.entries.emplace_back(row, times);
        }
        if (gather) {
          column.entries.emplace_back(rate_row(tree.root), -1.0);
        }
        tree_of_column.push_back(static_cast<int>(trees.size()));
        trees.push_back(std::move(tree));
        return column;
      });

  TreeProgramSolution out;
  out.prices = best_prices.empty() ? price_only(solution.prices) : best_prices;
  if (mirrored) {
    // Reversing is a symmetry of the programme, so the mean of the prices in both directions is as
    // good, and prices pairs of different trees rightly as well.
    const std::vector<int> twins = twin_arcs(network);
    const std::vector<double> one_way = out.prices;
    for (std::size_t i = 0; i < one_way.size(); ++i) {
      out.prices[i] = (one_way[i] + one_way[at(twins[i])]) / 2;
    }
  }
  // The cheapest trees set the scale of the prices.
  const TreeFinder finder(network, out.prices, symmetry);
  double cost = 0;
  if (mirrored) {
    cost = finder.mirrored().second;
  } else if (collective == Collective::kBroadcast) {
    cost = finder.out_tree(root).second;
  } else {
    cost = gather ? 0 : 1e300;
    for (const int rank : roots) {
      if (gather) {
        const auto members = std::count(root_class.begin(), root_class.end(), rank);
        cost += finder.out_tree(rank).second * static_cast<double>(members) / ranks;
      } else {
        cost = std::min(cost, finder.pair(rank).second);
      }
    }
  }
  double bound = 0;
  for (int arc = 0; arc < arcs; ++arc) {
    out.prices[at(arc)] /= cost;
    bound += out.prices[at(arc)] * static_cast<double>(network.arcs[at(arc)].capacity);
  }
  std::vector<double> amounts;
  for (std::size_t i = 0; i < solution.amounts.size(); ++i) {
    if (tree_of_column[i] >= 0 && solution.amounts[i] * scale > bound * 1e-8) {
      out.trees.push_back(trees[at(tree_of_column[i])]);
      amounts.push_back(solution.amounts[i] * scale);
    }
  }
  out.weights = exact_weights(network, out.trees, amounts, symmetry);
  if (gather) level_roots(out.trees, root_class, out.weights);
  for (const Fraction& weight : out.weights) {
    out.rate += weight;
  }
  out.bound = simplest_near(bound, 1e-8);
  return out;
}

}  // namespace ropewalk::plan
