#include "plan/estimate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "plan/chunk_model.h"

namespace ropewalk::plan {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// The longest way from the root to a rank, or from a rank to the root.
struct Way {
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

Way longest(const topology::Topology& topology, const std::vector<TreeEdge>& edges, int num_ranks,
            bool towards_root) {
  std::vector<Way> way(at(num_ranks));
  Way out;
  const auto pass = [&](const TreeEdge& edge) {
    const int near = towards_root ? edge.destination : edge.source;
    const int far = towards_root ? edge.source : edge.destination;
    way[at(far)] = {way[at(near)].us + hop_us(topology, edge), way[at(near)].hops + 1};
    if (way[at(far)].us > out.us) {
      out = way[at(far)];
    }
  };
  // From the root outwards, whichever way the data goes.
  if (towards_root) {
    std::for_each(edges.rbegin(), edges.rend(), pass);
  } else {
    std::for_each(edges.begin(), edges.end(), pass);
  }
  return out;
}

Way whole_way(const topology::Topology& topology, const Plan& plan, const Tree& tree) {
  const Way up = longest(topology, tree.reduce, plan.num_ranks(), true);
  const Way down = longest(topology, tree.broadcast, plan.num_ranks(), false);
  return {up.us + down.us, up.hops + down.hops};
}

}  // namespace

double latency_us(const topology::Topology& topology, const Plan& plan) {
  double out = 0;
  for (const Tree& tree : plan.trees) {
    out = std::max(out, whole_way(topology, plan, tree).us);
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
    const Way way = whole_way(topology, plan, tree);
    const int hops = std::max(way.hops, 1);
    const double alpha = way.us / hops;
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
    const Way way = whole_way(topology, plan, tree);
    // Every tree's share takes as long as the whole message at the whole rate.
    const HopCost hop{.alpha_s = way.us / std::max(way.hops, 1) * 1e-6,
                      .beta_bytes_per_s = rate * 1e6};
    out = std::max(out, best_chunk(std::max(way.hops, 1), bytes, hop, 1).seconds * 1e6);
  }
  return out;
}

}  // namespace ropewalk::plan
