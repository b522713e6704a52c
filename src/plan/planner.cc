#include "plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <optional>

#include "core/error.h"
#include "core/index.h"
#include "plan/bottleneck.h"
#include "plan/bounds.h"
#include "plan/driver_hops.h"
#include "plan/estimate.h"
#include "plan/loads.h"
#include "plan/nic_rings.h"
#include "plan/optimal.h"
#include "plan/packed.h"
#include "plan/problem.h"
#include "plan/ring.h"
#include "plan/shaped_trees.h"
#include "plan/three_phase.h"

namespace ropewalk::plan {

namespace {

/// Edges of one tree for each rank as a root, or paths between all pairs: what memory must hold,
/// some 100 bytes each and about as much again while planning.
double least_edges(Collective collective, int num_ranks) {
  const double ranks = num_ranks;
  return ranks * (ranks - 1) * (collective == Collective::kAllReduce ? 2 : 1);
}

/// Refuses what cannot be held, before anything grows with the square of the ranks.
void require_size(const Problem& problem) {
  const int ranks = problem.network.num_ranks();
  const double edges = least_edges(problem.collective, ranks);
  if (edges <= kMostTreeEdges) return;
  throw Error(Errc::kInvalidArgument,
              "{}: {} over {} GPUs is too large to be held in memory: at least {:.3g} tree edges, "
              "where {:.3g} is the limit, which {} GPUs keep to",
              problem.topology.name(), name(problem.collective), ranks, edges, kMostTreeEdges,
              most_ranks(problem.collective));
}

bool is_backwards(Collective collective) {
  return collective == Collective::kReduceScatter || collective == Collective::kReduce;
}

Problem make_problem(const topology::Topology& topology, const Request& request) {
  const auto& known = planned_collectives();
  if (std::find(known.begin(), known.end(), request.collective) == known.end()) {
    throw Error(Errc::kInvalidArgument,
                "plans are made for all_reduce, all_gather, "
                "reduce_scatter, broadcast and reduce, not for {}",
                name(request.collective));
  }
  Problem out(topology, make_network(topology, request.selection), request.collective);
  out.trees_per_root = request.trees_per_root;
  if (request.trees_per_root < 0 || request.trees_per_root > 4096) {
    throw Error(Errc::kInvalidArgument, "trees per root: {} is not within 1 and 4096",
                request.trees_per_root);
  }
  if (has_root(request.collective)) {
    if (request.root < 0 || request.root >= out.network.num_ranks()) {
      throw Error(Errc::kInvalidArgument, "root: there is no rank {}: the plan has ranks 0 to {}",
                  request.root, out.network.num_ranks() - 1);
    }
    out.root = request.root;
  } else {
    require_size(out);
  }
  return out;
}

CutBound cut_bound(const Problem& problem, const Network& network) {
  if (has_root(problem.collective)) return broadcast_bound(network, problem.root);
  std::vector<int> firsts = problem.symmetry().rank_class;
  std::sort(firsts.begin(), firsts.end());
  firsts.erase(std::unique(firsts.begin(), firsts.end()), firsts.end());
  return all_gather_bound(network, firsts);
}

/// Whether cuts bound the collective tightly: edge splitting then reaches the bound.
bool cuts_are_tight(const Problem& problem) {
  return problem.collective != Collective::kAllReduce && switches_are_balanced(problem.network);
}

std::vector<OutTree> splitting_trees(const Problem& problem, const Network& network) {
  const CutBound bound = cut_bound(problem, network);
  if (problem.trees_per_root == 0) {
    return has_root(problem.collective) ? pack_broadcast(network, problem.root, bound)
                                        : pack_all_gather(network, bound);
  }
  if (!is_symmetric(network)) {
    throw Error(
        Errc::kInvalidArgument,
        "a fixed number of trees per root needs links of the same capacity in both directions");
  }
  const bool rooted = has_root(problem.collective);
  Supplies supplies(at(network.num_ranks()), rooted ? 0 : Capacity{problem.trees_per_root});
  supplies[at(problem.root)] = problem.trees_per_root;
  return pack_fixed(network, supplies,
                    rooted ? bound.rate : bound.rate * Fraction(network.num_ranks()));
}

/// The trees of the linear programme, each with its images.
std::vector<Tree> program_trees(const Problem& problem) {
  const TreeProgramSolution& solution = problem.program();
  const Network network =
      is_backwards(problem.collective) ? reversed(problem.network) : problem.network;
  std::vector<Tree> out;
  // A rooted collective's programme has no use for symmetry: its root is not like other ranks.
  if (problem.symmetry().is_trivial() || has_root(problem.collective)) {
    for (std::size_t i = 0; i < solution.trees.size(); ++i) {
      out.push_back(plan_tree(network, problem.collective, solution.trees[i], solution.weights[i]));
    }
    return out;
  }
  const ArcImages arcs(network);
  const std::vector<std::vector<int>>& images = problem.symmetry().images;
  const Fraction part(1, static_cast<Fraction::Integer>(images.size()));
  for (std::size_t i = 0; i < solution.trees.size(); ++i) {
    for (const std::vector<int>& renaming : images) {
      out.push_back(plan_tree(network, problem.collective,
                              image_of(network, arcs, renaming, solution.trees[i]),
                              solution.weights[i] * part));
    }
  }
  return out;
}

/// Whether to take the programme over classes of links instead of edge splitting: always for many
/// ranks, where splitting would take hours; for some, where its numbers are exact, since its trees
/// are fewer and found sooner. For few ranks splitting is quick and always exact.
bool symmetry_serves(const Problem& problem) {
  constexpr int kFew = 8;
  constexpr int kMany = 24;
  const int ranks = problem.network.num_ranks();
  if (has_root(problem.collective) || problem.trees_per_root > 0 || ranks <= kFew ||
      problem.symmetry().is_trivial()) {
    return false;
  }
  if (ranks >= kMany) return true;
  const TreeProgramSolution& solution = problem.program();
  if (problem.collective == Collective::kAllReduce) return solution.rate == solution.bound;
  const bool backwards = is_backwards(problem.collective);
  const CutBound bound =
      cut_bound(problem, backwards ? reversed(problem.network) : problem.network);
  return solution.rate == bound.rate * Fraction(ranks);
}

std::vector<Tree> plan_optimal(const Problem& problem) {
  const Network& network = problem.network;
  if (!switches_are_balanced(network)) {
    if (problem.trees_per_root > 0) {
      throw Error(
          Errc::kInvalidArgument,
          "a fixed number of trees per root needs links of the same capacity in both directions");
    }
    return program_trees(problem);
  }
  if (symmetry_serves(problem)) {
    return program_trees(problem);
  }
  switch (problem.collective) {
    case Collective::kAllGather:
    case Collective::kBroadcast: return broadcast_trees(network, splitting_trees(problem, network));
    case Collective::kReduceScatter:
    case Collective::kReduce:
      return reduce_trees(network, splitting_trees(problem, reversed(network)));
    default: break;
  }
  // Reduce-scatter and all-gather are the best all-reduce on most machines; the programme says
  // where trees of freely chosen roots are better.
  const Network back = reversed(network);
  const Fraction gather = all_gather_bound(network).rate;
  const Fraction scatter = all_gather_bound(back).rate;
  const Fraction both = Fraction(network.num_ranks()) * gather * scatter / (gather + scatter);
  if (problem.trees_per_root == 0 && problem.program().rate > both &&
      problem.program().rate.to_double() > both.to_double() * (1 + 1e-7)) {
    return program_trees(problem);
  }
  return paired_trees(network, splitting_trees(problem, back), splitting_trees(problem, network));
}

using Maker = std::vector<Tree> (*)(const Problem&);

struct Entry {
  AlgorithmInfo info;
  Maker make;
};

const std::vector<Entry>& registry() {
  static const std::vector<Entry> entries = {
      {{"optimal", "trees that reach the bound (ForestColl)", planned_collectives()}, plan_optimal},
      {{"packed", "few trees within 5% of the bound (Blink)", planned_collectives()}, plan_packed},
      {{"one-hop", "a star around every GPU, for switches that join all", planned_collectives()},
       plan_one_hop},
      {{"ring", "rings as NCCL searches them", planned_collectives()}, plan_ring},
      {{"three-phase",
        "reduce within hosts, exchange between them, broadcast within (Blink)",
        {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce}},
       plan_three_phase},
      {{"rail-chain",
        "chains over hosts, one for each GPU of a host",
        {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce}},
       plan_rail_chain},
      {{"binary-tree",
        "double binary trees as NCCL builds them",
        {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce}},
       plan_binary_tree},
      {{"nics-balanced", "rings over hosts whose ends are spread over the NICs, each near its own",
        planned_collectives()},
       [](const Problem& problem) { return plan_nic_rings(problem, NicRule::kBalanced); }},
      {{"nics-least-used",
        "the ring in the order of ranks, each channel over the least used NICs (RCCL multi-NIC "
        "paper)",
        planned_collectives()},
       [](const Problem& problem) { return plan_nic_rings(problem, NicRule::kLeastUsed); }},
      {{"nics-first-ring",
        "what nics-least-used replaces: one ring, whose two NICs carry everything (RCCL 2.18)",
        planned_collectives()},
       [](const Problem& problem) { return plan_nic_rings(problem, NicRule::kFirstRing); }},
  };
  return entries;
}

Bound program_bound(const Problem& problem) {
  const TreeProgramSolution& solution = problem.program();
  Bound out;
  out.algbw = solution.bound * problem.network.unit;
  // Prices are per GB/s of capacity, so that sum(price x capacity) is the bound in GB/s.
  double highest = 0;
  for (const double price : solution.prices) highest = std::max(highest, price);
  for (std::size_t i = 0; i < solution.prices.size(); ++i) {
    if (solution.prices[i] > highest * 1e-9) {
      out.why.links.push_back(problem.network.arcs[i].link);
      out.why.prices.push_back(solution.prices[i]);
      out.why.capacity += Fraction(problem.network.arcs[i].capacity) * problem.network.unit;
    }
  }
  out.why.words = fmt::format("{} limit this: every tree needs its share of them",
                              name_links(problem.topology, out.why.links));
  return out;
}

Bound bound_of(const Problem& problem) {
  if (!cuts_are_tight(problem)) return program_bound(problem);
  const bool backwards = is_backwards(problem.collective);
  const Network network = backwards ? reversed(problem.network) : problem.network;
  const CutBound found = cut_bound(problem, network);
  Bound out;
  out.algbw = found.rate * network.unit;
  if (!has_root(problem.collective)) {
    out.algbw *= Fraction(network.num_ranks());
  }
  out.why = describe_cut(problem.topology, network, found.cut, backwards);
  return out;
}

}  // namespace

int most_ranks(Collective collective) {
  int ranks = 2;
  while (least_edges(collective, ranks + 1) <= kMostTreeEdges) ++ranks;
  return ranks;
}

const std::vector<Collective>& planned_collectives() {
  static const std::vector<Collective> known = {Collective::kAllReduce, Collective::kAllGather,
                                                Collective::kReduceScatter, Collective::kBroadcast,
                                                Collective::kReduce};
  return known;
}

const std::vector<AlgorithmInfo>& algorithms() {
  static const std::vector<AlgorithmInfo> infos = [] {
    std::vector<AlgorithmInfo> out;
    for (const Entry& entry : registry()) {
      out.push_back(entry.info);
    }
    return out;
  }();
  return infos;
}

double bus_factor(Collective collective, int num_ranks) {
  const double ranks = num_ranks;
  switch (collective) {
    case Collective::kAllReduce: return 2 * (ranks - 1) / ranks;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll: return (ranks - 1) / ranks;
    default: return 1;
  }
}

namespace {

// The name of plans that have trees for each class of links.
constexpr std::string_view kBothClasses = "link-classes";

const Entry& entry_of(std::string_view wanted) {
  return *std::ranges::find(registry(), wanted, [](const Entry& each) { return each.info.name; });
}

bool serves(const Entry& entry, Collective collective) {
  return std::ranges::find(entry.info.collectives, collective) != entry.info.collectives.end();
}

Plan plan_of(const Problem& problem, std::string_view algorithm, std::vector<Tree> trees,
             const Bound& bound, const std::string& plane) {
  Plan out;
  out.collective = problem.collective;
  out.algorithm = algorithm;
  out.topology = problem.topology.name();
  out.plane = plane.empty() ? "all" : plane;
  out.root = problem.root;
  out.gpus = problem.network.ranks;
  out.trees = std::move(trees);
  for (const Tree& tree : out.trees) {
    out.algbw += tree.weight;
  }
  out.bound = bound;
  std::vector<int> links;
  for (const Arc& arc : problem.network.arcs) {
    links.push_back(arc.link);
  }
  out.links = link_loads(problem.topology, std::move(links), out.trees);
  out.optimal = is_at_bound(out);
  out.latency_us = latency_us(problem.topology, out);
  out.hops = hops(out);
  return out;
}

Plan made_by(const Problem& problem, const Entry& entry, const Bound& bound,
             const std::string& plane) {
  if (!serves(entry, problem.collective)) {
    throw Error(Errc::kInvalidArgument, "algorithm: {} makes no plans for {}", entry.info.name,
                name(problem.collective));
  }
  return plan_of(problem, entry.info.name, entry.make(problem), bound, plane);
}

/// Plans by the algorithms that `auto` tries.
/// @param refusal  the last one's, set where an algorithm cannot serve the request
std::vector<Plan> candidates(const Problem& problem, const Bound& bound, const std::string& plane,
                             std::optional<Error>& refusal) {
  std::vector<Plan> plans;
  // Trees by edge splitting take long on large machines: they come last, and only where they may
  // still be better.
  constexpr int kMany = 24;
  for (const std::string_view wanted : {"one-hop", "rail-chain", "optimal"}) {
    const Entry& entry = entry_of(wanted);
    const bool done =
        problem.network.num_ranks() >= kMany &&
        std::any_of(plans.begin(), plans.end(), [](const Plan& plan) { return plan.optimal; });
    if (!serves(entry, problem.collective) || (done && has_root(problem.collective))) continue;
    try {
      plans.push_back(made_by(problem, entry, bound, plane));
    } catch (const Error& error) {
      if (error.code() != Errc::kInvalidArgument) throw;
      refusal = error;
    }
  }
  return plans;
}

/// The best rate; of those within kNear of it the one that ends first for an empty message, then
/// the one with fewer trees.
Plan best_of(std::vector<Plan> plans) {
  constexpr double kNear = 0.001;
  const double best =
      std::max_element(plans.begin(), plans.end(), [](const Plan& a, const Plan& b) {
        return a.algbw < b.algbw;
      })->algbw.to_double();
  std::erase_if(plans,
                [&](const Plan& plan) { return plan.algbw.to_double() < best * (1 - kNear); });
  return *std::min_element(plans.begin(), plans.end(), [](const Plan& a, const Plan& b) {
    return std::pair(a.latency_us, a.trees.size()) < std::pair(b.latency_us, b.trees.size());
  });
}

Plan best_of(const Problem& problem, const Bound& bound, const std::string& plane) {
  std::optional<Error> refusal;
  std::vector<Plan> plans = candidates(problem, bound, plane, refusal);
  if (plans.empty()) throw Error(*refusal);
  return best_of(std::move(plans));
}

bool can_be_had(const topology::Topology& topology, const Plan& plan) {
  return std::ranges::all_of(plan.trees, [&](const Tree& tree) {
    return hop_class(topology, plan, tree) != HopClass::kNone;
  });
}

/// The machine with planes for the links that join GPUs, and for all others. Nodes and links keep
/// their indices.
topology::Topology in_two_classes(const topology::Topology& topology) {
  topology::Description description = topology.description();
  description.planes = {{"between-gpus", {}}, {"besides", {}}};
  for (const topology::LinkType type : topology::all_link_types()) {
    description.planes[joins_gpus(type) ? 0 : 1].types.push_back(type);
  }
  return topology::Topology(std::move(description));
}

/// Two sets of trees, one for each class of links, with the shares of long messages that end
/// together (plan/link_split.h): in proportion to their rates. Nothing where only one of the
/// classes connects the ranks.
std::optional<Plan> of_both_classes(const Problem& whole, const Bound& bound,
                                    const Request& request) {
  const auto has = [&](bool joining) {
    return std::ranges::any_of(whole.network.arcs, [&](const Arc& arc) {
      return joins_gpus(whole.topology.link(at(arc.link)).type) == joining;
    });
  };
  if (!has(true) || !has(false)) return std::nullopt;
  const topology::Topology classes = in_two_classes(whole.topology);
  std::vector<Plan> plans;
  for (const topology::Plane& plane : classes.planes()) {
    Request alone = request;
    alone.selection.plane = plane.name;
    try {
      const Problem problem = make_problem(classes, alone);
      plans.push_back(best_of(problem, bound_of(problem), plane.name));
    } catch (const Error& error) {
      if (error.code() != Errc::kInvalidArgument) throw;
      return std::nullopt;
    }
  }
  std::vector<Tree> trees = std::move(plans[0].trees);
  trees.insert(trees.end(), std::make_move_iterator(plans[1].trees.begin()),
               std::make_move_iterator(plans[1].trees.end()));
  return plan_of(whole, kBothClasses, std::move(trees), bound, "");
}

/// `auto` on all links: of the plans that a program can have from a driver, the best.
Plan default_plan(const Problem& problem, const Bound& bound, const Request& request) {
  if (std::optional<Plan> both = of_both_classes(problem, bound, request);
      both.has_value() && can_be_had(problem.topology, *both)) {
    return std::move(*both);
  }
  std::optional<Error> refusal;
  const std::vector<Plan> plans = candidates(problem, bound, "", refusal);
  std::vector<Plan> real;
  std::ranges::copy_if(plans, std::back_inserter(real),
                       [&](const Plan& plan) { return can_be_had(problem.topology, plan); });
  const auto best_rate = [](const std::vector<Plan>& of) {
    double best = 0;
    for (const Plan& plan : of) best = std::max(best, plan.algbw.to_double());
    return best;
  };
  // Where what is left is slower, the other algorithms may have better that can be had.
  constexpr double kAsGood = 0.99;
  if (real.empty() || best_rate(real) < kAsGood * best_rate(plans)) {
    for (const std::string_view other :
         {"three-phase", "nics-balanced", "packed", "ring", "binary-tree"}) {
      const Entry& entry = entry_of(other);
      if (!serves(entry, problem.collective)) continue;
      try {
        Plan plan = made_by(problem, entry, bound, "");
        if (can_be_had(problem.topology, plan)) real.push_back(std::move(plan));
      } catch (const Error& error) {
        if (error.code() != Errc::kInvalidArgument) throw;
        refusal = error;
      }
    }
  }
  if (!real.empty()) return best_of(std::move(real));
  // hop_classes() says what is wrong with it.
  if (!plans.empty()) return best_of(plans);
  throw Error(*refusal);
}

}  // namespace

namespace {

/// Runs `body`; says for what memory ran out.
template <typename Body>
auto within_memory(const topology::Topology& topology, const Request& request, const char* what,
                   Body&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    const std::size_t gpus =
        request.selection.gpus.empty() ? topology.gpus().size() : request.selection.gpus.size();
    throw Error(Errc::kSystem,
                "memory ran out for {} of {} over {} GPUs of {} ({} nodes, {} links): choose "
                "fewer GPUs, or allow more memory",
                what, name(request.collective), gpus, topology.name(), topology.nodes().size(),
                topology.links().size());
  }
}

Plan planned(const topology::Topology& topology, const Request& request) {
  const Problem problem = make_problem(topology, request);
  require_size(problem);  // with a root, too: bounds of those need less
  const auto& entries = registry();
  const auto entry = std::find_if(entries.begin(), entries.end(), [&](const Entry& known) {
    return known.info.name == request.algorithm;
  });
  if (entry == entries.end() && request.algorithm != "auto") {
    std::string names = "auto";
    for (const Entry& known : entries) {
      names += fmt::format(", {}", known.info.name);
    }
    throw Error(Errc::kInvalidArgument, "algorithm: unknown \"{}\"; there are {}",
                request.algorithm, names);
  }
  const Bound bound = bound_of(problem);
  const std::string& plane = request.selection.plane;
  if (entry != entries.end()) return made_by(problem, *entry, bound, plane);
  return plane.empty() ? default_plan(problem, bound, request) : best_of(problem, bound, plane);
}

}  // namespace

Bound make_bound(const topology::Topology& topology, const Request& request) {
  return within_memory(topology, request, "the bound",
                       [&] { return bound_of(make_problem(topology, request)); });
}

Plan make_plan(const topology::Topology& topology, const Request& request) {
  return within_memory(topology, request, "a plan", [&] { return planned(topology, request); });
}

}  // namespace ropewalk::plan
