#include "plan/loads.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "plan/network.h"

namespace ropewalk::plan {

std::vector<LinkLoad> link_loads(const topology::Topology& topology, std::vector<int> links,
                                 const std::vector<Tree>& trees) {
  // Trees of the same weight are counted together: counting is quick, fractions are not.
  std::map<Fraction, std::vector<std::int64_t>> passes;
  for (const Tree& tree : trees) {
    std::vector<std::int64_t>& count = passes[tree.weight];
    count.resize(topology.links().size(), 0);
    for (const std::vector<TreeEdge>* edges : {&tree.reduce, &tree.broadcast}) {
      for (const TreeEdge& edge : *edges) {
        for (const int link : edge.links) ++count[static_cast<std::size_t>(link)];
      }
    }
  }
  std::sort(links.begin(), links.end());
  std::vector<LinkLoad> out;
  for (const int link : links) {
    const double capacity = topology.link(static_cast<std::size_t>(link)).capacity;
    Fraction load = 0;
    for (const auto& [weight, count] : passes) {
      load += weight * Fraction(count[static_cast<std::size_t>(link)]);
    }
    out.push_back({link, load, Fraction::from_decimal(capacity, kCapacityDigits)});
  }
  return out;
}

bool is_at_bound(const Plan& plan) {
  return plan.algbw.to_double() >= plan.bound.algbw.to_double() * (1 - 1e-6);
}

}  // namespace ropewalk::plan
