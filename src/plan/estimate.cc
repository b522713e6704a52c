#include "plan/estimate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/index.h"
#include "plan/chunk_model.h"

namespace ropewalk::plan {

namespace {

/// The longest path from the root to a rank, or from a rank to the root.
struct TreePath {
  double us = 0;
  int hops = 0;
};

double hop_us(const topology::Topology& topology, const TreeEdge& edge) {
  double sum = 0;
  for (const int link : edge.links) {
    sum += topology::latency_us(topology.link(at(link)));
  }
  return sum;
}

TreePath longest(const topology::Topology& topology, const std::vector<TreeEdge>& edges,
                 int num_ranks, bool towards_root) {
  std::vector<TreePath> path(at(num_ranks));
  TreePath out;
  const auto pass = [&](const TreeEdge& edge) {
    const int near = towards_root ? edge.destination : edge.source;
    const int far = towards_root ? edge.source : edge.destination;
    path[at(far)] = {path[at(near)].us + hop_us(topology, edge), path[at(near)].hops + 1};
    if (path[at(far)].us > out.us) {
      out = path[at(far)];
    }
  };
  // From the root outwards, whichever direction the data flows.
  if (towards_root) {
    std::for_each(edges.rbegin(), edges.rend(), pass);
  } else {
    std::for_each(edges.begin(), edges.end(), pass);
  }
  return out;
}

TreePath deepest_path(const topology::Topology& topology, const Plan& plan, const Tree& tree) {
  const TreePath up = longest(topology, tree.reduce, plan.num_ranks(), true);
  const TreePath down = longest(topology, tree.broadcast, plan.num_ranks(), false);
  return {up.us + down.us, up.hops + down.hops};
}

}  // namespace

double latency_us(const topology::Topology& topology, const Plan& plan) {
  double out = 0;
  for (const Tree& tree : plan.trees) {
    out = std::max(out, deepest_path(topology, plan, tree).us);
  }
  return out;
}

int hops(const Plan& plan) {
  int out = 0;
  for (const Tree& tree : plan.trees) {
    int both = 0;
    for (const std::vector<TreeEdge>* edges : {&tree.reduce, &tree.broadcast}) {
      std::vector<int> depth(at(plan.num_ranks()), 0);
      int deepest = 0;
      const auto pass = [&](int near, int far) {
        depth[at(far)] = depth[at(near)] + 1;
        deepest = std::max(deepest, depth[at(far)]);
      };
      if (edges == &tree.broadcast) {
        for (const TreeEdge& edge : *edges) pass(edge.source, edge.destination);
      } else {
        std::for_each(edges->rbegin(), edges->rend(),
                      [&](const TreeEdge& edge) { pass(edge.destination, edge.source); });
      }
      both += deepest;
    }
    out = std::max(out, both);
  }
  return out;
}

std::vector<double> bytes_for_shares(const topology::Topology& topology, const Plan& plan,
                                     const std::vector<double>& shares) {
  std::vector<double> out(shares.size(), 0);
  const double rate = plan.algbw.to_double() * 1e3;  // bytes per microsecond
  for (const Tree& tree : plan.trees) {
    const TreePath path = deepest_path(topology, plan, tree);
    const int hops = std::max(path.hops, 1);
    const double alpha = path.us / hops;
    // x^2 microseconds at the whole rate take (x + sqrt((p-1) a))^2 with the best chunks, over one
    // hop x^2 + a: the x for which that is x^2 / share.
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const double x = hops > 1 ? std::sqrt((hops - 1) * alpha) / (1 / std::sqrt(shares[i]) - 1)
                                : std::sqrt(alpha / (1 / shares[i] - 1));
      out[i] = std::max(out[i], rate * x * x);
    }
  }
  return out;
}

double time_us(const topology::Topology& topology, const Plan& plan, double bytes) {
  double out = 0;
  if (bytes <= 0) return latency_us(topology, plan);
  const double rate = plan.algbw.to_double() * 1e3;  // bytes per microsecond
  for (const Tree& tree : plan.trees) {
    const TreePath path = deepest_path(topology, plan, tree);
    // Every tree's share takes as long as the whole message at the whole rate.
    const HopCost hop{.alpha_s = path.us / std::max(path.hops, 1) * 1e-6,
                      .beta_bytes_per_s = rate * 1e6};
    out = std::max(out, best_chunk(std::max(path.hops, 1), bytes, hop, 1).seconds * 1e6);
  }
  return out;
}

}  // namespace ropewalk::plan
