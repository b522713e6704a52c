#include "tune/worth_planning.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

#include "plan/device_path.h"

namespace ropewalk::tune {
namespace {

constexpr int kMostPlannedRanks = 64;

}  // namespace

bool worth_planning(const topology::Topology& machine) {
  const std::vector<topology::NodeIndex>& gpus = machine.gpus();
  const std::size_t n = gpus.size();
  if (n < 3 || machine.hosts() > 1) return false;
  // GPUs that NVLink has reached from the first, each looked at once.
  std::vector<bool> reached(n);
  std::vector<std::size_t> open = {0};
  reached[0] = true;
  double least = std::numeric_limits<double>::infinity();
  double most = 0;
  while (!open.empty()) {
    const std::size_t from = open.back();
    open.pop_back();
    for (std::size_t to = 0; to < n; ++to) {
      if (to == from) continue;
      const std::optional<plan::DevicePath> path =
          plan::nearest_over_fabric(machine, gpus[from], gpus[to]);
      double rate = path.has_value() ? std::numeric_limits<double>::infinity() : 0;
      if (path.has_value()) {
        for (const int link : path->links) {
          rate = std::min(rate, machine.link(static_cast<std::size_t>(link)).capacity);
        }
      }
      least = std::min(least, rate);
      most = std::max(most, rate);
      if (rate > 0 && !reached[to]) {
        reached[to] = true;
        open.push_back(to);
      }
    }
  }
  return std::ranges::all_of(reached, [](bool is) { return is; }) && least < most;
}

bool can_plan(const GroupFacts& facts) {
  return facts.num_hosts > 1 && facts.max_ranks_per_host > 1 &&
         facts.num_ranks <= kMostPlannedRanks &&
         facts.host_of_rank.size() == static_cast<std::size_t>(facts.num_ranks);
}

}  // namespace ropewalk::tune
