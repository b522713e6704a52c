#include "plan/nic_rings.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/error.h"
#include "plan/channel_rings.h"
#include "plan/loads.h"
#include "plan/ring.h"

namespace ropewalk::plan {
namespace {

struct SharedRing {
  Ring ring;
  int channels = 0;  // that are this ring
};

std::vector<SharedRing> on_network(const Problem& problem,
                                   const std::vector<ChannelRing>& channels) {
  std::map<int, int> arc_of_link;
  for (std::size_t arc = 0; arc < problem.network.arcs.size(); ++arc) {
    arc_of_link[problem.network.arcs[arc].link] = static_cast<int>(arc);
  }
  std::vector<SharedRing> rings;
  std::map<std::pair<std::vector<topology::NodeIndex>, std::vector<std::vector<int>>>, std::size_t>
      known;
  for (const ChannelRing& channel : channels) {
    const auto [index, is_new] = known.try_emplace({channel.gpus, channel.hops}, rings.size());
    if (!is_new) {
      ++rings[index->second].channels;
      continue;
    }
    Ring& ring = rings.emplace_back(SharedRing{{}, 1}).ring;
    for (const topology::NodeIndex gpu : channel.gpus) {
      ring.ranks.push_back(problem.network.rank_of_node[gpu]);
    }
    for (const std::vector<int>& hop : channel.hops) {
      std::vector<int>& path = ring.paths.emplace_back();
      for (const int link : hop) {
        const auto arc = arc_of_link.find(link);
        if (arc == arc_of_link.end()) {
          throw Error(Errc::kInvalidArgument, "{}: rings through the NICs need {} links, too",
                      problem.topology.name(),
                      topology::name(problem.topology.link(static_cast<std::size_t>(link)).type));
        }
        path.push_back(arc->second);
      }
    }
  }
  return rings;
}

}  // namespace

std::vector<Tree> plan_nic_rings(const Problem& problem, NicRule rule) {
  const topology::Topology& machine = problem.topology;
  if (problem.network.ranks.size() != machine.gpus().size()) {
    throw Error(Errc::kInvalidArgument, "{}: rings through the NICs are of all its GPUs",
                machine.name());
  }
  ChannelRequest request;
  request.rule = rule;
  const HostChannels channels = make_channels(machine, request);
  std::vector<Tree> trees;
  for (const SharedRing& shared : on_network(problem, rings_of_channels(machine, channels))) {
    for (Tree& tree : trees_of_rings(problem, {shared.ring}, Fraction(shared.channels))) {
      trees.push_back(std::move(tree));
    }
  }
  std::vector<int> links;
  for (const Arc& arc : problem.network.arcs) links.push_back(arc.link);
  Fraction busiest = 0;
  for (const LinkLoad& load : link_loads(machine, std::move(links), trees)) {
    busiest = std::max(busiest, load.load / load.capacity);
  }
  for (Tree& tree : trees) tree.weight /= busiest;
  return trees;
}

}  // namespace ropewalk::plan
