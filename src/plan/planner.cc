#include "plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "plan/bottleneck.h"
#include "plan/bounds.h"
#include "plan/estimate.h"
#include "plan/loads.h"
#include "plan/optimal.h"
#include "plan/problem.h"

namespace ropewalk::plan {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

bool is_backwards(Collective collective) {
  return collective == Collective::kReduceScatter || collective == Collective::kReduce;
}

Problem make_problem(const topology::Topology& topology, const Request& request) {
  const auto& known = planned_collectives();
  if (std::find(known.begin(), known.end(), request.collective) == known.end()) {
    throw Error(Errc::kInvalidArgument, "plans are made for all_reduce, all_gather, "
                "reduce_scatter, broadcast and reduce, not for {}", name(request.collective));
  }
  Problem out{topology, make_network(topology, request.selection), request.collective, 0,
              request.trees_per_root};
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
  }
  return out;
}

CutBound cut_bound(const Problem& problem, const Network& network) {
  return has_root(problem.collective) ? broadcast_bound(network, problem.root)
                                      : all_gather_bound(network);
}

std::vector<OutTree> optimal_trees(const Problem& problem, const Network& network) {
  if (!switches_are_balanced(network)) {
    throw Error(Errc::kInvalidArgument,
                "optimal: a switch of {} has more capacity in than out; trees through it cannot "
                "reach the bound of the cuts",
                problem.topology.name());
  }
  const CutBound bound = cut_bound(problem, network);
  if (problem.trees_per_root > 0) {
    if (!is_symmetric(network)) {
      throw Error(Errc::kInvalidArgument,
                  "a fixed number of trees per root needs links of the same capacity both ways");
    }
    Supplies supplies(at(network.num_ranks()), has_root(problem.collective)
                                                   ? 0
                                                   : Capacity{problem.trees_per_root});
    supplies[at(problem.root)] = problem.trees_per_root;
    const Fraction limit = has_root(problem.collective)
                               ? bound.rate
                               : bound.rate * Fraction(network.num_ranks());
    return pack_fixed(network, supplies, limit);
  }
  return has_root(problem.collective) ? pack_broadcast(network, problem.root, bound)
                                      : pack_all_gather(network, bound);
}

std::vector<Tree> plan_optimal(const Problem& problem) {
  const Network& network = problem.network;
  switch (problem.collective) {
    case Collective::kAllGather:
    case Collective::kBroadcast:
      return broadcast_trees(network, optimal_trees(problem, network));
    case Collective::kReduceScatter:
    case Collective::kReduce:
      return reduce_trees(network, optimal_trees(problem, reversed(network)));
    default:
      return paired_trees(network, optimal_trees(problem, reversed(network)),
                          optimal_trees(problem, network));
  }
}

using Maker = std::vector<Tree> (*)(const Problem&);

struct Entry {
  AlgorithmInfo info;
  Maker make;
};

const std::vector<Entry>& registry() {
  static const std::vector<Entry> entries = {
      {{"optimal", "trees that reach the bound exactly", planned_collectives()}, plan_optimal},
  };
  return entries;
}

Bound bound_of(const Problem& problem) {
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

Bound make_bound(const topology::Topology& topology, const Request& request) {
  return bound_of(make_problem(topology, request));
}

Plan make_plan(const topology::Topology& topology, const Request& request) {
  const Problem problem = make_problem(topology, request);
  const std::string wanted = request.algorithm == "auto" ? "optimal" : request.algorithm;
  const auto& entries = registry();
  const auto entry = std::find_if(entries.begin(), entries.end(),
                                  [&](const Entry& known) { return known.info.name == wanted; });
  if (entry == entries.end()) {
    std::string names = "auto";
    for (const Entry& known : entries) {
      names += fmt::format(", {}", known.info.name);
    }
    throw Error(Errc::kInvalidArgument, "algorithm: unknown \"{}\"; there are {}", wanted, names);
  }
  Plan out;
  out.collective = request.collective;
  out.algorithm = wanted;
  out.topology = topology.name();
  out.plane = request.selection.plane.empty() ? "all" : request.selection.plane;
  out.root = problem.root;
  out.gpus = problem.network.ranks;
  out.trees = entry->make(problem);
  for (const Tree& tree : out.trees) {
    out.algbw += tree.weight;
  }
  out.bound = bound_of(problem);
  std::vector<int> links;
  for (const Arc& arc : problem.network.arcs) {
    links.push_back(arc.link);
  }
  out.links = link_loads(topology, std::move(links), out.trees);
  out.optimal = is_at_bound(out);
  out.latency_us = latency_us(topology, out);
  return out;
}

}  // namespace ropewalk::plan
