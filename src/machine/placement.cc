#include "machine/placement.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "topology/scan.h"
#include "tune/numa_ring.h"

namespace ropewalk::machine {
namespace {

using topology::NodeIndex;
using topology::Topology;

// The NUMA nodes of a host of which a rank with these processors may use the largest part.
std::vector<NodeIndex> nearest(const Topology& topology, const std::vector<NodeIndex>& cpus,
                               const tune::Processors& usable) {
  std::vector<NodeIndex> best;
  double most = -1;
  for (const NodeIndex cpu : cpus) {
    const auto all = tune::Processors::of_list(topology.node(cpu).cpus);
    const int count = all.count();
    const double part = count == 0 ? 0 : static_cast<double>(all.in_common(usable)) / count;
    if (part > most) best.clear();
    if (part >= most) best.push_back(cpu);
    most = std::max(most, part);
  }
  return best;
}

// The GPU of host `host` at that address.
std::optional<NodeIndex> gpu_at(const Topology& topology, int host, const std::string& bus_id) {
  if (bus_id.empty()) return std::nullopt;
  for (const NodeIndex gpu : topology.gpus()) {
    const topology::Node& node = topology.node(gpu);
    if (node.host == host && topology::normal_bus_id(node.bus_id) == bus_id) return gpu;
  }
  return std::nullopt;
}

bool has_bus_ids(const Topology& topology) {
  return std::ranges::any_of(topology.gpus(),
                             [&](NodeIndex gpu) { return !topology.node(gpu).bus_id.empty(); });
}

}  // namespace

std::vector<int> ring_near(const Seats& seats) {
  std::vector<int> cores;
  for (const tune::Processors& usable : seats.processors) cores.push_back(usable.first());
  return tune::ring_by_numa({seats.host_of_rank, seats.numa_of_rank, cores});
}

std::vector<NodeIndex> place_by_cores(const Topology& topology, const Seats& seats) {
  std::map<int, std::vector<NodeIndex>> cpus_of_host;
  for (const NodeIndex cpu : topology.nodes_of(topology::NodeKind::kCpu)) {
    cpus_of_host[topology.node(cpu).host].push_back(cpu);
  }
  // Many ranks have the same processors, which are examined once; such ranks are spread.
  std::map<std::pair<int, tune::Processors>, std::vector<std::size_t>> alike;
  for (std::size_t r = 0; r < seats.host_of_rank.size(); ++r) {
    alike[{seats.host_of_rank[r], seats.processors[r]}].push_back(r);
  }
  std::vector<NodeIndex> placed(seats.host_of_rank.size());
  for (const auto& [seat, ranks] : alike) {
    const auto& [host, usable] = seat;
    const std::vector<NodeIndex>& cpus = cpus_of_host[host];
    if (cpus.empty()) {
      throw Error(Errc::kInvalidArgument, "rank {} is on host {}, which has no CPU in {}",
                  ranks.front(), host, topology.name());
    }
    const std::vector<NodeIndex> best = nearest(topology, cpus, usable);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      placed[ranks[i]] = best[i * best.size() / ranks.size()];
    }
  }
  return placed;
}

Machine place(Machine machine, std::span<const std::string> bus_ids,
              std::span<const int> host_of_rank) {
  const Topology& whole = machine.topology;
  if (machine.described && !has_bus_ids(whole)) return machine;
  std::vector<int> gpus;
  std::set<NodeIndex> taken;
  bool each_has_its_own = true;
  for (std::size_t r = 0; r < bus_ids.size(); ++r) {
    const std::string bus_id = topology::normal_bus_id(bus_ids[r]);
    const std::optional<NodeIndex> gpu = gpu_at(whole, host_of_rank[r], bus_id);
    if (!gpu.has_value()) {
      if (machine.described) {
        throw Error(Errc::kInvalidArgument, "rank {} has the GPU {}, which {} ({}) does not have",
                    r, bus_id, whole.name(), machine.origin);
      }
      log::info(log::kInit, "the GPU {} of rank {} is not in what was found: no plans are made",
                bus_id, r);
      each_has_its_own = false;
      continue;
    }
    machine.node_of_rank[r] = *gpu;
    gpus.push_back(whole.node(*gpu).rank);
    each_has_its_own &= taken.insert(*gpu).second;
  }
  machine.planned = each_has_its_own ? std::make_shared<const Topology>(whole.with_gpus(gpus))
                                     : std::shared_ptr<const Topology>();
  return machine;
}

}  // namespace ropewalk::machine
