#include "schedule/from_plan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "core/digest.h"
#include "core/error.h"
#include "schedule/building.h"
#include "schedule/layout.h"
#include "schedule/limits.h"
#include "schedule/tree.h"
#include "schedule/tree_order.h"

namespace ropewalk::schedule {
namespace {

using plan::Fraction;

/// A plan's tree in both directions, as trees over nodes with the root at node 0.
struct Pair {
  const plan::Tree* source = nullptr;
  RankedTree up;    // reduction, as the out-tree of its reversal; empty when there is none
  RankedTree down;  // broadcast
};

[[noreturn]] void refuse(const plan::Plan& plan, const std::string& what) {
  throw Error(Errc::kInvalidArgument, "schedule from the {} plan for {}: {}", plan.algorithm,
              name(plan.collective), what);
}

/// `edges` as (parent, child).
RankedTree ranked(const plan::Plan& plan, int root, const std::vector<std::pair<int, int>>& edges) {
  const int n = plan.num_ranks();
  if (root < 0 || root >= n) refuse(plan, fmt::format("root {} among {} ranks", root, n));
  std::vector<int> parent_of(static_cast<std::size_t>(n), -1);
  for (const auto& [parent, child] : edges) {
    if (parent < 0 || parent >= n || child < 0 || child >= n || child == root || parent == child ||
        parent_of[static_cast<std::size_t>(child)] >= 0) {
      refuse(plan, fmt::format("edge {} - {} is in no tree of root {}", parent, child, root));
    }
    parent_of[static_cast<std::size_t>(child)] = parent;
  }
  RankedTree result;
  std::vector<int> node_of(static_cast<std::size_t>(n), -1);
  std::vector<int> parent_node = {-1};
  std::vector<std::vector<int>> children(static_cast<std::size_t>(n));
  for (int rank = 0; rank < n; ++rank) {
    if (const int parent = parent_of[static_cast<std::size_t>(rank)]; parent >= 0) {
      children[static_cast<std::size_t>(parent)].push_back(rank);
    }
  }
  result.order.push_back(root);
  node_of[static_cast<std::size_t>(root)] = 0;
  for (std::size_t node = 0; node < result.order.size(); ++node) {
    for (const int child : children[static_cast<std::size_t>(result.order[node])]) {
      node_of[static_cast<std::size_t>(child)] = static_cast<int>(result.order.size());
      result.order.push_back(child);
      parent_node.push_back(static_cast<int>(node));
    }
  }
  if (static_cast<int>(result.order.size()) != n) {
    const auto missing = std::find(node_of.begin(), node_of.end(), -1) - node_of.begin();
    refuse(plan, fmt::format("a tree of root {} does not reach rank {}", root, missing));
  }
  result.tree = tree_of(std::move(parent_node));
  result.node = std::move(node_of);
  return result;
}

Pair pair_of(const plan::Plan& plan, const plan::Tree& tree) {
  const bool goes_up = reduces(plan.collective);
  const bool comes_down =
      plan.collective != Collective::kReduce && plan.collective != Collective::kReduceScatter;
  Pair pair;
  pair.source = &tree;
  if (tree.reduce.empty() == goes_up || tree.broadcast.empty() == comes_down) {
    refuse(plan, fmt::format("a tree of root {} has not the directions that it needs", tree.root));
  }
  std::vector<std::pair<int, int>> edges;
  if (goes_up) {
    for (const plan::TreeEdge& edge : tree.reduce) {
      edges.emplace_back(edge.destination, edge.source);
    }
    pair.up = ranked(plan, tree.root, edges);
  }
  edges.clear();
  if (comes_down) {
    for (const plan::TreeEdge& edge : tree.broadcast) {
      edges.emplace_back(edge.source, edge.destination);
    }
    pair.down = ranked(plan, tree.root, edges);
  }
  return pair;
}

/// Whole numbers in the ratio of the fractions, at most kMaxWeight: exact where that is possible.
std::vector<int> whole_weights(const std::vector<Fraction>& shares) {
  const Fraction largest = *std::max_element(shares.begin(), shares.end());
  Fraction::Integer common = 1;
  for (const Fraction& share : shares) {
    const Fraction::Integer d = share.denominator();
    common = common / plan::greatest_common_divisor(common, d) * d;
    if (common > Fraction::Integer{kMaxWeight} * kMaxWeight) break;
  }
  Fraction::Integer shared = 0;
  std::vector<int> weights;
  const auto exact = [&](const Fraction& share) {
    return share.numerator() * (common / share.denominator());
  };
  if (common <= Fraction::Integer{kMaxWeight} * kMaxWeight) {
    for (const Fraction& share : shares) {
      shared = plan::greatest_common_divisor(shared, exact(share));
    }
    if (exact(largest) / shared <= kMaxWeight) {
      for (const Fraction& share : shares) {
        weights.push_back(static_cast<int>(exact(share) / shared));
      }
      return weights;
    }
  }
  const double scale = kMaxWeight / largest.to_double();
  for (const Fraction& share : shares) {
    weights.push_back(std::max(1, static_cast<int>(std::lround(share.to_double() * scale))));
  }
  return weights;
}

class Compiler {
 public:
  Compiler(const plan::Plan& plan, Pipelining pipelining) : plan_(plan), pipelining_(pipelining) {
    const Collective wanted = plan.collective;
    if (wanted != Collective::kBroadcast && wanted != Collective::kReduce &&
        wanted != Collective::kAllGather && wanted != Collective::kReduceScatter &&
        wanted != Collective::kAllReduce) {
      refuse(plan, "plans have no such collective");
    }
    if (plan.num_ranks() < 2) refuse(plan, "fewer than two ranks");
    if (plan.trees.empty()) refuse(plan, "no trees");
    for (const plan::Tree& tree : plan.trees) {
      if (tree.weight <= Fraction(0)) refuse(plan, "a tree whose weight is not positive");
      pairs_.push_back(pair_of(plan, tree));
    }
  }

  PlannedSchedule compile() {
    switch (plan_.collective) {
      case Collective::kBroadcast:
      case Collective::kReduce: one_channel_per_tree(); break;
      case Collective::kAllReduce:
        if (every_rank_roots_alike() && pipelining_ == Pipelining::kByParts) {
          one_channel_per_piece();
        } else {
          one_channel_per_tree();
        }
        break;
      default:
        if (!every_rank_roots_alike())
          refuse(plan_, "not every rank roots trees of the same weight");
        one_channel_per_piece();
        break;
    }
    return std::move(result_);
  }

 private:
  [[nodiscard]] int num_ranks() const { return plan_.num_ranks(); }

  [[nodiscard]] bool every_rank_roots_alike() const {
    std::vector<Fraction> totals(static_cast<std::size_t>(num_ranks()), Fraction(0));
    for (const plan::Tree& tree : plan_.trees) {
      totals[static_cast<std::size_t>(tree.root)] += tree.weight;
    }
    return std::adjacent_find(totals.begin(), totals.end(), std::not_equal_to<>()) == totals.end();
  }

  void begin(const std::vector<Fraction>& shares, int parts) {
    if (shares.size() > static_cast<std::size_t>(kMaxChannels)) {
      refuse(plan_, fmt::format("it needs {} channels, at most {} are possible; plan with fewer "
                                "trees per root",
                                shares.size(), kMaxChannels));
    }
    const double blocks = static_cast<double>(num_units(plan_.collective, num_ranks())) * parts;
    const double passes = plan_.collective == Collective::kAllReduce ? 2 : 1;
    if (!affordable(passes * blocks * num_ranks() * static_cast<double>(shares.size()))) {
      refuse(plan_, fmt::format("it needs more than {} steps", kMaxSteps));
    }
    const int root = has_root(plan_.collective) ? plan_.root : 0;
    result_.schedule = blank("plan-" + plan_.algorithm, {plan_.collective, num_ranks(), root, 1},
                             parts, static_cast<int>(shares.size()));
    result_.schedule.weight = whole_weights(shares);
  }

  StepList& steps(int rank, int channel) {
    return result_.schedule
        .programs[static_cast<std::size_t>(rank)][static_cast<std::size_t>(channel)];
  }

  // ---- one channel per tree ---------------------------------------------------------------

  void one_channel_per_tree() {
    std::vector<Fraction> shares;
    int height = 0;
    for (const Pair& pair : pairs_) {
      shares.push_back(pair.source->weight);
      if (has_root(plan_.collective) && pair.source->root != plan_.root) {
        refuse(plan_, fmt::format("a tree of root {}, not {}", pair.source->root, plan_.root));
      }
      if (plan_.collective == Collective::kAllReduce) {
        height = std::max({height, pair.up.tree.height(), pair.down.tree.height()});
      }
    }
    const bool both = plan_.collective == Collective::kAllReduce;
    const bool by_parts = both && pipelining_ == Pipelining::kByParts;
    begin(shares, by_parts ? tree_all_reduce_parts(height) : 1);
    for (int channel = 0; channel < static_cast<int>(pairs_.size()); ++channel) {
      const Pair& pair = pairs_[static_cast<std::size_t>(channel)];
      Schedule& schedule = result_.schedule;
      if (plan_.collective == Collective::kBroadcast) {
        add_tree_broadcast(schedule, channel, pair.down.tree, pair.down.order);
      } else if (plan_.collective == Collective::kReduce) {
        add_tree_reduce(schedule, channel, pair.up.tree, pair.up.order);
      } else if (pair.up.tree.parent == pair.down.tree.parent && pair.up.order == pair.down.order) {
        add_tree_all_reduce(schedule, channel, pair.up.tree, pair.up.order);
      } else {
        add_tree_pair_all_reduce(schedule, channel, pair.up.tree, pair.up.order, pair.down.tree,
                                 pair.down.order);
      }
      for (int part = 0; part < schedule.parts; ++part) add_routes(channel, part, *pair.source);
    }
  }

  // ---- one channel per piece --------------------------------------------------------------

  /// Where each rank's line changes from one of its trees to the next, heavy trees first so that
  /// the changes of different ranks fall together more often.
  void one_channel_per_piece() {
    std::vector<std::vector<const Pair*>> of_root(static_cast<std::size_t>(num_ranks()));
    for (const Pair& pair : pairs_) {
      of_root[static_cast<std::size_t>(pair.source->root)].push_back(&pair);
    }
    std::set<Fraction> changes;
    for (std::vector<const Pair*>& trees : of_root) {
      std::ranges::stable_sort(trees, std::greater(),
                               [](const Pair* pair) { return pair->source->weight; });
      Fraction end = 0;
      for (const Pair* pair : trees) changes.insert(end += pair->source->weight);
    }
    std::vector<Fraction> shares;
    Fraction before = 0;
    for (const Fraction& change : changes) {
      shares.push_back(change - before);
      before = change;
    }
    begin(shares, plan_.collective == Collective::kAllReduce ? num_ranks() : 1);
    std::vector<std::size_t> current(of_root.size(), 0);
    std::vector<Fraction> ends;
    for (const auto& trees : of_root) ends.push_back(trees.front()->source->weight);
    int channel = 0;
    for (const Fraction& change : changes) {
      std::vector<const Pair*> trees;
      for (std::size_t root = 0; root < of_root.size(); ++root) {
        trees.push_back(of_root[root][current[root]]);
        if (ends[root] == change && current[root] + 1 < of_root[root].size()) {
          ends[root] += of_root[root][++current[root]]->source->weight;
        }
      }
      add_piece(channel++, trees);
    }
  }

  /// One channel in which block r moves along trees[r], whose root is rank r.
  void add_piece(int channel, const std::vector<const Pair*>& trees) {
    if (reduces(plan_.collective)) {
      std::vector<RankedTree> ups;
      for (const Pair* pair : trees) ups.push_back(pair->up);
      const auto order = tree_order(ups, num_ranks());
      for (int rank = 0; rank < num_ranks(); ++rank) {
        const std::vector<int>& forwards = order[static_cast<std::size_t>(rank)];
        for (auto block = forwards.rbegin(); block != forwards.rend(); ++block) {
          steps(rank, channel).push_back(up_step(rank, *block, ups));
        }
      }
    }
    if (plan_.collective != Collective::kReduceScatter) {
      std::vector<RankedTree> downs;
      for (const Pair* pair : trees) downs.push_back(pair->down);
      const auto order = tree_order(downs, num_ranks());
      for (int rank = 0; rank < num_ranks(); ++rank) {
        for (const int block : order[static_cast<std::size_t>(rank)]) {
          add_down_step(channel, rank, block, downs);
        }
      }
    }
    for (int root = 0; root < num_ranks(); ++root) {
      add_routes(channel, root, *trees[static_cast<std::size_t>(root)]->source);
    }
  }

  struct Neighbours {
    int parent = -1;
    std::vector<int> children;
  };
  static Neighbours neighbours(const RankedTree& ranked, int rank) {
    const auto node = static_cast<std::size_t>(ranked.node[static_cast<std::size_t>(rank)]);
    Neighbours found;
    if (const int parent = ranked.tree.parent[node]; parent >= 0) {
      found.parent = ranked.order[static_cast<std::size_t>(parent)];
    }
    for (const int child : ranked.tree.children[node]) {
      found.children.push_back(ranked.order[static_cast<std::size_t>(child)]);
    }
    return found;
  }

  static Step up_step(int rank, int block, const std::vector<RankedTree>& ups) {
    const Neighbours at = neighbours(ups[static_cast<std::size_t>(block)], rank);
    std::vector<Operand> operands = {Operand::input()};
    for (const int child : at.children) operands.push_back(Operand::link(child));
    return at.parent < 0 ? finish(block, std::move(operands))
                         : send(block, std::move(operands), {at.parent});
  }

  void add_down_step(int channel, int rank, int block, const std::vector<RankedTree>& downs) {
    const Neighbours at = neighbours(downs[static_cast<std::size_t>(block)], rank);
    if (at.parent >= 0) {
      steps(rank, channel).push_back(write(block, {Operand::link(at.parent)}, at.children));
    } else if (plan_.collective == Collective::kAllReduce) {
      // The reduction left the sum in the output.
      if (!at.children.empty()) {
        steps(rank, channel).push_back(send(block, {Operand::output()}, at.children));
      }
    } else {
      steps(rank, channel).push_back(write(block, {Operand::input()}, at.children));
    }
  }

  void add_routes(int channel, int block, const plan::Tree& tree) {
    for (const auto* edges : {&tree.reduce, &tree.broadcast}) {
      for (const plan::TreeEdge& edge : *edges) {
        result_.routes.add(channel, block, edge.source, edge.destination, edge.links);
      }
    }
  }

  const plan::Plan& plan_;
  Pipelining pipelining_;
  std::vector<Pair> pairs_;
  PlannedSchedule result_;
};

}  // namespace

void Routes::add(int channel, int block, int source, int destination, std::span<const int> links) {
  paths_[{channel, block, source, destination}].emplace_back(links.begin(), links.end());
}

const std::vector<int>* Routes::find(int channel, int block, int source, int destination,
                                     int nth) const {
  const auto found = paths_.find({channel, block, source, destination});
  if (found == paths_.end() || nth < 0 || static_cast<std::size_t>(nth) >= found->second.size()) {
    return nullptr;
  }
  return &found->second[static_cast<std::size_t>(nth)];
}

void Routes::append(const Routes& others, int first_channel) {
  for (const auto& [key, paths] : others.paths_) {
    const auto& [channel, block, source, destination] = key;
    auto& mine = paths_[{first_channel + channel, block, source, destination}];
    mine.insert(mine.end(), paths.begin(), paths.end());
  }
}

std::uint64_t Routes::digest() const {
  std::string all;
  for (const auto& [key, paths] : paths_) {
    const auto& [channel, block, source, destination] = key;
    all += fmt::format("{} {} {} {}:", channel, block, source, destination);
    for (const std::vector<int>& path : paths) {
      for (const int link : path) all += fmt::format(" {}", link);
      all += ';';
    }
  }
  return ropewalk::digest(all);
}

PlannedSchedule from_plan(const plan::Plan& plan, Pipelining pipelining) {
  return Compiler(plan, pipelining).compile();
}

std::vector<double> bytes_on_links(const PlannedSchedule& planned, std::size_t count,
                                   std::size_t element_bytes, std::size_t granule,
                                   std::size_t num_links) {
  const Schedule& schedule = planned.schedule;
  std::vector<double> bytes(num_links, 0);
  for (int channel = 0; channel < schedule.num_channels(); ++channel) {
    const Range range =
        channel_range(count, schedule.weight.data(), schedule.num_channels(), channel, granule);
    for (int rank = 0; rank < schedule.num_ranks; ++rank) {
      std::map<std::pair<int, int>, int> sent;  // (block, peer) to messages so far
      for (const Step& step :
           schedule.programs[static_cast<std::size_t>(rank)][static_cast<std::size_t>(channel)]) {
        const Range part = part_range(range, schedule.parts, step.block % schedule.parts, granule);
        for (const int peer : step.send) {
          const std::vector<int>* path =
              planned.routes.find(channel, step.block, rank, peer, sent[{step.block, peer}]++);
          if (path == nullptr) {
            throw Error(Errc::kInternal, "no route for block {} from rank {} to {} on channel {}",
                        step.block, rank, peer, channel);
          }
          for (const int link : *path) {
            bytes.at(static_cast<std::size_t>(link)) +=
                static_cast<double>(part.count * element_bytes);
          }
        }
      }
    }
  }
  return bytes;
}

}  // namespace ropewalk::schedule
