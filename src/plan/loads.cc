#include "plan/loads.h"

#include <algorithm>
#include <map>

#include "plan/network.h"

namespace ropewalk::plan {

std::vector<LinkLoad> link_loads(const topology::Topology& topology, std::vector<int> links,
                                 const std::vector<Tree>& trees) {
  std::map<int, Fraction> load;
  for (const Tree& tree : trees) {
    for (const std::vector<TreeEdge>* edges : {&tree.reduce, &tree.broadcast}) {
      for (const TreeEdge& edge : *edges) {
        for (const int link : edge.links) {
          load[link] += tree.weight;
        }
      }
    }
  }
  std::sort(links.begin(), links.end());
  std::vector<LinkLoad> out;
  for (const int link : links) {
    const double capacity = topology.link(static_cast<std::size_t>(link)).capacity;
    const auto found = load.find(link);
    out.push_back({link, found == load.end() ? Fraction(0) : found->second,
                   Fraction::from_decimal(capacity, kCapacityDigits)});
  }
  return out;
}

bool is_at_bound(const Plan& plan) {
  if (plan.bound.why.prices.empty()) {
    return plan.algbw == plan.bound.algbw;
  }
  return plan.algbw.to_double() >= plan.bound.algbw.to_double() * (1 - 1e-6);
}

}  // namespace ropewalk::plan
