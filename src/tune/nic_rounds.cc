#include "tune/nic_rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "plan/chunk_model.h"
#include "schedule/from_plan.h"
#include "topology/topology.h"
#include "tune/machine_cost.h"

namespace ropewalk::tune {
namespace {

using topology::LinkType;
using topology::NodeIndex;
using topology::NodeKind;

// Of links that take no time.
constexpr double kAtOnce = topology::kMaxCapacity;
// Of the round that is walked: long beside what the others take.
constexpr double kWalkedBytes = 1 << 20;
// Messages of a round.
constexpr std::size_t kMostWalked = 3000;

}  // namespace

double NicRounds::seconds(double rounds, double bytes) const {
  return bytes * std::min(alone * rounds, plan::pipelined_seconds(first, rounds, period));
}

struct NicHosts::Machine {
  topology::Topology topology;
  std::vector<int> host_of_rank;
  std::vector<int> away, home;            // links, by rank: to its host's memory and back
  std::vector<std::vector<int>> out, in;  // by host and rail
};

NicHosts::NicHosts(std::span<const int> host_of_rank, std::span<const double> rates)
    : rate_(std::accumulate(rates.begin(), rates.end(), 0.0)) {
  topology::Description made;
  made.name = "nics";
  made.hosts = 1 + *std::ranges::max_element(host_of_rank);
  const auto add = [&](topology::Node node) {
    made.nodes.push_back(std::move(node));
    return made.nodes.size() - 1;
  };
  const auto join = [&](NodeIndex from, NodeIndex to, LinkType type, double gbps) {
    made.links.push_back(
        {.source = from, .destination = to, .type = type, .capacity = gbps, .latency_us = 0});
    return static_cast<int>(made.links.size()) - 1;
  };
  std::vector<NodeIndex> networks;
  for (std::size_t rail = 0; rail < rates.size(); ++rail) {
    networks.push_back(
        add({.id = fmt::format("network{}", rail), .kind = NodeKind::kNetwork, .host = -1}));
  }
  std::vector<NodeIndex> memory;
  std::vector<std::vector<int>> out(static_cast<std::size_t>(made.hosts));
  std::vector<std::vector<int>> in(out.size());
  for (int host = 0; host < made.hosts; ++host) {
    memory.push_back(
        add({.id = fmt::format("h{}.memory", host), .kind = NodeKind::kCpu, .host = host}));
    for (std::size_t rail = 0; rail < rates.size(); ++rail) {
      const double gbps = std::clamp(rates[rail] / 1e9, topology::kMinCapacity, kAtOnce);
      const auto h = static_cast<std::size_t>(host);
      out[h].push_back(join(memory.back(), networks[rail], LinkType::kNet, gbps));
      in[h].push_back(join(networks[rail], memory.back(), LinkType::kNet, gbps));
    }
  }
  std::vector<int> away;
  std::vector<int> home;
  for (std::size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    const int host = host_of_rank[rank];
    const NodeIndex node = add({.id = fmt::format("rank{}", rank),
                                .kind = NodeKind::kGpu,
                                .host = host,
                                .rank = static_cast<int>(rank)});
    away.push_back(join(node, memory[static_cast<std::size_t>(host)], LinkType::kPcie, kAtOnce));
    home.push_back(join(memory[static_cast<std::size_t>(host)], node, LinkType::kPcie, kAtOnce));
  }
  machine_ = std::make_unique<const Machine>(Machine{topology::Topology(std::move(made)),
                                                     {host_of_rank.begin(), host_of_rank.end()},
                                                     std::move(away),
                                                     std::move(home),
                                                     std::move(out),
                                                     std::move(in)});
}

NicHosts::~NicHosts() = default;
NicHosts::NicHosts(NicHosts&&) noexcept = default;

NicRounds NicHosts::rounds_of(const schedule::Checked& checked, int hops,
                              std::uint32_t lag_slots) const {
  const Machine& machine = *machine_;
  const schedule::Schedule& schedule = checked.schedule();
  schedule::Routes routes;
  std::map<int, std::set<std::tuple<std::size_t, std::size_t, int>>> sharing;  // links, by NIC
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    const auto from = static_cast<std::size_t>(machine.host_of_rank[rank]);
    for (std::size_t c = 0; c < schedule.programs[rank].size(); ++c) {
      for (const schedule::Step& step : schedule.programs[rank][c]) {
        for (const int peer : step.send) {
          const auto to =
              static_cast<std::size_t>(machine.host_of_rank[static_cast<std::size_t>(peer)]);
          std::vector<int> links = {machine.away[rank]};
          if (from != to) {
            const std::size_t rail = c % machine.out[from].size();
            links.push_back(machine.out[from][rail]);
            links.push_back(machine.in[to][rail]);
            for (const int nic : {links[1], links[2]}) sharing[nic].insert({c, rank, peer});
          }
          links.push_back(machine.home[static_cast<std::size_t>(peer)]);
          routes.add(static_cast<int>(c), step.block, static_cast<int>(rank), peer, links);
        }
      }
    }
  }
  MachineCostOptions options;
  options.most_walked = kMostWalked;
  if (lag_slots > 0) {
    options.slots = static_cast<int>(lag_slots);
    options.lags = true;
  }
  DefaultRoutes no_others(machine.topology);
  const MachineCost cost(no_others, schedule, hops, routes, options);
  const MachineCost::Rounds walked = cost.rounds_of(kWalkedBytes);
  // Of few rounds the walk may not have seen that the busiest NIC lets them pass no sooner.
  const double least = cost.seconds_per_byte();
  std::size_t most = 0;
  for (const auto& [nic, links] : sharing) most = std::max(most, links.size());
  const auto seconds = [&](double of_all) { return std::max(of_all / kWalkedBytes, least); };
  return {seconds(walked.alone), seconds(walked.first), seconds(walked.period),
          static_cast<int>(most)};
}

NicCost::NicCost(std::shared_ptr<const NicHosts> hosts,
                 std::shared_ptr<const schedule::Checked> checked, double leaving_units, int hops,
                 std::uint32_t lag_slots)
    : hosts_(std::move(hosts)),
      checked_(std::move(checked)),
      leaving_units_(leaving_units),
      hops_(hops),
      lag_slots_(lag_slots) {}

NicRounds NicCost::least() const {
  const double seconds = leaving_units_ / hosts_->rate();
  return {.alone = seconds, .first = seconds, .period = seconds, .links = 1};
}

const NicRounds& NicCost::rounds() {
  if (!rounds_.has_value()) rounds_ = hosts_->rounds_of(*checked_, hops_, lag_slots_);
  return *rounds_;
}

}  // namespace ropewalk::tune
