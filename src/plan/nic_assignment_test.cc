#include "plan/nic_assignment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "core/error.h"
#include "plan/device_path.h"
#include "topology/synthetic.h"
#include "topology/testing/recorded.h"

namespace ropewalk::plan {
namespace {

using nlohmann::json;
using topology::PathClass;

std::string class_name(PathClass path) {
  // The reference draws all PCIe switches of a branch as one class.
  return std::string(path == PathClass::kPxb ? "PIX" : topology::name(path));
}

/// One channel for each GPU of a host, both ends at that GPU, on one NIC: the reference's problem.
NicProblem one_end_per_gpu(const topology::Topology& machine, int host) {
  NicProblem problem;
  problem.ports = nic_ports(machine, host);
  problem.one_rail = true;
  for (const auto gpu : machine.gpus()) {
    if (machine.node(gpu).host == host) problem.channels.push_back({gpu, gpu});
  }
  return problem;
}

TEST(NicAssignment, AgreesWithTheReferenceOnEveryMachine) {
  const json expected = json::parse(topology::testing::file_text("expected-bounds.json"));
  int compared = 0;
  for (const auto& [name, choice] : expected["nic_choice"]["values"].items()) {
    SCOPED_TRACE(name);
    const topology::Topology machine = topology::testing::machine(name);
    for (const auto& item : choice["nic_speed_gbps"].items()) {
      // Not a structured binding: Clang before 16 gives lambdas none of those.
      const std::string& id = item.key();
      const auto& gbps = item.value();
      const auto ports = nic_ports(machine, machine.node(machine.at(id)).host);
      const auto port = std::find_if(ports.begin(), ports.end(), [&](const NicPort& p) {
        return machine.node(p.node).id == id;
      });
      ASSERT_NE(port, ports.end());
      EXPECT_EQ(port->gbps, gbps.get<double>());
    }
    for (const auto& [gpu, near] : choice["nearest"].items()) {
      std::vector<std::string> ids;
      int least = std::numeric_limits<int>::max();
      std::string path_class;
      for (const NicPort& port : nic_ports(machine, machine.node(machine.at(gpu)).host)) {
        const auto path = nearest_over_pcie(machine, machine.at(gpu), port.node);
        if (!path.has_value() || path->distance > least) continue;
        if (path->distance < least) ids.clear();
        least = path->distance;
        path_class = class_name(path->path_class);
        ids.push_back(machine.node(port.node).id);
      }
      std::sort(ids.begin(), ids.end());
      EXPECT_EQ(ids, near["nics"].get<std::vector<std::string>>()) << gpu;
      EXPECT_EQ(path_class, near["path"].get<std::string>()) << gpu;
    }
    // The reference names one optimal assignment; its load and distance are what counts.
    const json& best = choice["balanced_nearest"];
    for (int host = 0; host < machine.hosts(); ++host) {
      const NicProblem problem = one_end_per_gpu(machine, host);
      const NicAssignment found = assign_nics(machine, problem, NicRule::kBalanced);
      std::map<std::string, int> uses;
      int distance = 0;
      double load = 0;
      for (const auto& [gpu, nic] : best["one_optimal_assignment"].items()) {
        if (machine.node(machine.at(gpu)).host != host) continue;
        const auto id = nic.get<std::string>();
        const auto path = nearest_over_pcie(machine, machine.at(gpu), machine.at(id));
        ASSERT_TRUE(path.has_value());
        distance += 2 * path->distance;  // in and out
        load = std::max(load, ++uses[id] / choice["nic_speed_gbps"][id].get<double>());
      }
      EXPECT_DOUBLE_EQ(found.largest_load, load);
      EXPECT_EQ(found.distance, distance);
      EXPECT_EQ(class_name(found.worst_path), best["worst_path"].get<std::string>());
      ++compared;
    }
  }
  EXPECT_GT(compared, 10);
}

/// The best of all assignments: load, then distance.
std::pair<double, int> by_trying_all(const topology::Topology& machine, const NicProblem& problem) {
  std::pair<double, int> best{std::numeric_limits<double>::max(), 0};
  const std::size_t ends = problem.channels.size();
  std::vector<std::size_t> chosen(2 * ends, 0);
  std::function<void(std::size_t)> extend = [&](std::size_t at) {
    if (at < chosen.size()) {
      for (chosen[at] = 0; chosen[at] < problem.ports.size(); ++chosen[at]) extend(at + 1);
      return;
    }
    std::pair<double, int> found{0, 0};
    for (const std::size_t first : {std::size_t{0}, ends}) {
      std::vector<int> uses(problem.ports.size(), 0);
      for (std::size_t c = 0; c < ends; ++c) {
        const std::size_t port = chosen[first + c];
        const ChannelEnds& channel = problem.channels[c];
        const auto path = first == 0
                              ? nearest_over_pcie(machine, problem.ports[port].node, channel.first)
                              : nearest_over_pcie(machine, channel.last, problem.ports[port].node);
        found.second += path->distance;
        found.first = std::max(found.first, ++uses[port] / problem.ports[port].gbps);
      }
    }
    best = std::min(best, found);
  };
  extend(0);
  return best;
}

TEST(NicAssignment, IsTheBestOfAllAssignments) {
  std::mt19937 random(11);
  for (int round = 0; round < 20; ++round) {
    const topology::Topology machine =
        topology::synthetic(round % 2 == 0 ? "2cpu 4pcie 4gpu 3nic" : "2cpu 2pcie 3gpu 2nic");
    NicProblem problem;
    problem.ports = nic_ports(machine, 0);
    for (NicPort& port : problem.ports) port.gbps = 1 + static_cast<double>(random() % 3);
    for (int c = 0; c < 3; ++c) {
      const auto gpu = [&] { return machine.gpus()[random() % machine.gpus().size()]; };
      problem.channels.push_back({gpu(), gpu()});
    }
    const NicAssignment found = assign_nics(machine, problem, NicRule::kBalanced);
    const auto [load, distance] = by_trying_all(machine, problem);
    EXPECT_DOUBLE_EQ(found.largest_load, load);
    EXPECT_EQ(found.distance, distance);
  }
}

NicProblem four_rings(const topology::Topology& machine) {
  NicProblem problem;
  problem.ports = nic_ports(machine, 0);
  const auto& gpus = machine.gpus();
  problem.channels = {
      {gpus[0], gpus[1]}, {gpus[1], gpus[0]}, {gpus[2], gpus[3]}, {gpus[3], gpus[2]}};
  return problem;
}

TEST(NicAssignment, PublishedRulesDoAsPublished) {
  const topology::Topology machine = topology::testing::machine("rccl-4gpu-4nic-x2");
  const NicProblem problem = four_rings(machine);
  const NicAssignment first = assign_nics(machine, problem, NicRule::kFirstRing);
  EXPECT_EQ(first.channels, std::vector<ChannelNics>(4, ChannelNics{0, 1}));
  const NicAssignment used = assign_nics(machine, problem, NicRule::kLeastUsed);
  EXPECT_EQ(used.channels, (std::vector<ChannelNics>{{0, 1}, {2, 3}, {0, 1}, {2, 3}}));
  const NicAssignment best = assign_nics(machine, problem, NicRule::kBalanced);
  EXPECT_EQ(best.channels, (std::vector<ChannelNics>{{0, 1}, {1, 0}, {2, 3}, {3, 2}}));
  EXPECT_EQ(best.worst_path, PathClass::kPix);
  EXPECT_LT(best.largest_load, used.largest_load);
  EXPECT_LT(used.largest_load, first.largest_load);
  EXPECT_LT(best.distance, used.distance);
}

TEST(NicAssignment, MeasuredRatesReplaceNominalOnes) {
  const topology::Topology machine = topology::testing::machine("rccl-4gpu-4nic-x2");
  NicProblem problem = four_rings(machine);
  // A slow NIC gets nothing while the others can take its part at less load.
  problem.ports = nic_ports(machine, 0, {{"h0.nic2", 1.5}});
  for (const ChannelNics& nics : assign_nics(machine, problem, NicRule::kBalanced).channels) {
    EXPECT_NE(nics.entry, 2U);
    EXPECT_NE(nics.exit, 2U);
  }
  EXPECT_THROW(nic_ports(machine, 0, {{"h0.nic9", 1}}), Error);
  EXPECT_THROW(nic_ports(machine, 0, {{"h0.gpu0", 1}}), Error);
  EXPECT_THROW(nic_ports(machine, 0, {{"h0.nic0", -1}}), Error);
}

TEST(NicAssignment, OneRailKeepsBothEndsTogether) {
  const topology::Topology machine = topology::testing::machine("dgx-a100-x2");
  NicProblem problem;
  problem.ports = nic_ports(machine, 0);
  problem.one_rail = true;
  for (std::size_t c = 0; c < 8; ++c) {
    problem.channels.push_back({machine.gpus()[c], machine.gpus()[c ^ 1]});
  }
  const NicAssignment found = assign_nics(machine, problem, NicRule::kBalanced);
  EXPECT_EQ(found.rail_changes, 0);
  EXPECT_EQ(found.worst_path, PathClass::kPix);
  EXPECT_DOUBLE_EQ(found.largest_load, 1 / 25.0);
}

TEST(NicAssignment, RefusesWhatCannotBeAssigned) {
  const topology::Topology machine = topology::testing::machine("h200-2gpu");
  EXPECT_TRUE(nic_ports(machine, 0).empty());
  EXPECT_THROW(assign_nics(machine, {{{machine.gpus()[0], machine.gpus()[1]}}, {}, false},
                           NicRule::kBalanced),
               Error);
  const topology::Topology other = topology::testing::machine("rccl-4gpu-4nic-x2");
  EXPECT_THROW(assign_nics(other, {{}, nic_ports(other, 0), false}, NicRule::kBalanced), Error);
  // The GPU is on the other host.
  const auto far = other.gpus().back();
  EXPECT_THROW(assign_nics(other, {{{far, far}}, nic_ports(other, 0), false}, NicRule::kBalanced),
               Error);
}

}  // namespace
}  // namespace ropewalk::plan
