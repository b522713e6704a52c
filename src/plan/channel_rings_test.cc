#include "plan/channel_rings.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "core/error.h"
#include "plan/certificate.h"
#include "plan/nic_report.h"
#include "plan/planner.h"
#include "topology/replicate.h"
#include "topology/synthetic.h"
#include "topology/testing/recorded.h"

namespace ropewalk::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Plan plan_by(const topology::Topology& machine, NicRule rule) {
  ChannelRequest request;
  request.rule = rule;
  return plan_of_channels(machine, make_channels(machine, request));
}

/// Multi-host machines whose hosts have NICs on PCIe.
const char* const kMachines[] = {"rccl-4gpu-4nic-x2", "rccl-4gpu-1nic-x2", "dgx-a100-x2",
                                 "dgx-h100-x2", "cornelis-p100-opa-x2"};

TEST(ChannelRings, BalancedAgainstOneRingReachesThePublishedGain) {
  const topology::Topology machine = topology::testing::machine("rccl-4gpu-4nic-x2");
  const double before = plan_by(machine, NicRule::kFirstRing).algbw.to_double();
  const double rewrite = plan_by(machine, NicRule::kLeastUsed).algbw.to_double();
  const double balanced = plan_by(machine, NicRule::kBalanced).algbw.to_double();
  // 8 ranks, busbw = 7/8 algbw: one NIC of 6.25 GB/s; then the GPU ports of 12 GB/s limit.
  EXPECT_DOUBLE_EQ(before * 7 / 8, 6.25);
  EXPECT_DOUBLE_EQ(balanced * 7 / 8, 12);
  // The RCCL multi-NIC paper measured gains of 1.34 to 1.51 for its rewrite, which shares the NICs
  // similar but not equal: in this model it ends at 1.28, where links between dies limit it.
  EXPECT_GT(rewrite, before);
  EXPECT_GE(balanced / before, 1.51);
  EXPECT_GE(balanced, rewrite);
}

// All that a plan of them says is right is confirmed by code of its own.
TEST(NicRings, ServeEveryCollectiveAtTheRateOfTheBusiestLink) {
  const topology::Topology machine = topology::testing::machine("rccl-4gpu-4nic-x2");
  for (const Collective collective : planned_collectives()) {
    for (const char* algorithm : {"nics-balanced", "nics-least-used"}) {
      SCOPED_TRACE(std::string(algorithm) + " " + std::string(name(collective)));
      Request request;
      request.collective = collective;
      request.algorithm = algorithm;
      const Plan plan = make_plan(machine, request);
      EXPECT_TRUE(check(machine, plan).valid);
      const double busbw = plan.algbw.to_double() * bus_factor(collective, 8);
      if (std::string(algorithm) == "nics-balanced") {
        // A rooted one leaves a hop of each ring out, never more than the GPU's port.
        EXPECT_NEAR(busbw, 12, 1e-9);
      } else {
        EXPECT_GE(busbw, 8 - 1e-9);
        EXPECT_LT(busbw, 12);
      }
    }
  }
}

TEST(NicRings, ChannelsThatAreTheSameRingAreOneTree) {
  const topology::Topology machine = topology::testing::machine("dolphin-k2200-x2");
  Request request;
  request.collective = Collective::kBroadcast;
  request.algorithm = "nics-balanced";
  // The ring, and the same in the opposite direction.
  EXPECT_EQ(make_plan(machine, request).trees.size(), 2U);
}

TEST(NicRings, NeedSeveralHostsAndAllTheirGpus) {
  Request request;
  request.algorithm = "nics-balanced";
  EXPECT_THROW(make_plan(topology::testing::machine("dgx1v"), request), Error);
  request.selection.gpus = {0, 1, 4, 5};
  EXPECT_THROW(make_plan(topology::testing::machine("rccl-4gpu-4nic-x2"), request), Error);
}

TEST(ChannelRings, EveryChannelIsARingOverAllRanks) {
  for (const char* name : kMachines) {
    SCOPED_TRACE(name);
    const topology::Topology machine = topology::testing::machine(name);
    for (const NicRule rule : {NicRule::kFirstRing, NicRule::kLeastUsed, NicRule::kBalanced}) {
      const Plan plan = plan_by(machine, rule);
      const std::size_t n = machine.gpus().size();
      ASSERT_EQ(plan.trees.size() % n, 0U);
      for (const Tree& tree : plan.trees) {
        std::set<int> reached = {tree.root};
        for (const TreeEdge& edge : tree.broadcast) {
          EXPECT_TRUE(reached.contains(edge.source));
          EXPECT_TRUE(reached.insert(edge.destination).second);
          // The links lead from the one to the other.
          auto at = machine.gpus()[static_cast<std::size_t>(edge.source)];
          for (const int link : edge.links) {
            EXPECT_EQ(machine.link(static_cast<std::size_t>(link)).source, at);
            at = machine.link(static_cast<std::size_t>(link)).destination;
          }
          EXPECT_EQ(at, machine.gpus()[static_cast<std::size_t>(edge.destination)]);
        }
        EXPECT_EQ(reached.size(), n);
      }
      for (const LinkLoad& link : plan.links) EXPECT_LE(link.load, link.capacity);
      EXPECT_TRUE(std::any_of(plan.links.begin(), plan.links.end(),
                              [](const LinkLoad& link) { return link.load == link.capacity; }));
    }
    EXPECT_GE(plan_by(machine, NicRule::kBalanced).algbw,
              plan_by(machine, NicRule::kFirstRing).algbw);
  }
}

TEST(ChannelRings, AllNicsWorkAndAreNear) {
  for (const char* name : kMachines) {
    SCOPED_TRACE(name);
    const topology::Topology machine = topology::testing::machine(name);
    const HostChannels channels = make_channels(machine, {});
    std::vector<int> in(channels.ports.size(), 0);
    std::vector<int> out(channels.ports.size(), 0);
    for (const HostChannel& channel : channels.channels) {
      ++in[channel.nics.entry];
      ++out[channel.nics.exit];
    }
    EXPECT_EQ(std::count(in.begin(), in.end(), 0), 0);
    EXPECT_EQ(std::count(out.begin(), out.end(), 0), 0);
  }
}

TEST(ChannelRings, TheGraphFileSaysTheSame) {
  for (const char* name : kMachines) {
    SCOPED_TRACE(name);
    const topology::Topology machine = topology::testing::machine(name);
    const HostChannels made = make_channels(machine, {});
    const std::string text = write_nccl_graph(graph_of_channels(machine, made, 6));
    const NcclGraphs graphs = read_nccl_graph(text, "g.xml");
    ASSERT_EQ(graphs.size(), 2U);
    EXPECT_EQ(graphs[0].nchannels, graphs[1].nchannels);
    const HostChannels read = channels_of_graph(machine, 0, graphs);
    ASSERT_EQ(read.channels.size(), made.channels.size());
    EXPECT_EQ(read.mirrored, made.mirrored);
    for (std::size_t c = 0; c < made.channels.size(); ++c) {
      EXPECT_EQ(read.channels[c].order, made.channels[c].order);
      if (made.gpus.size() > 1) {
        EXPECT_EQ(read.channels[c].nics, made.channels[c].nics);
      }
    }
  }
}

TEST(ChannelRings, ServeManyGpusAndHosts) {
  const topology::Topology machine = topology::synthetic("4x(16gpu nvswitch 4pcie 2cpu) 8nic");
  EXPECT_GT(plan_by(machine, NicRule::kBalanced).algbw,
            plan_by(machine, NicRule::kFirstRing).algbw);
}

TEST(NicReport, NamesTheIdleNicsAndTheGain) {
  const topology::Topology machine = topology::testing::machine("rccl-4gpu-4nic-x2");
  const auto report = nlohmann::json::parse(nic_report(machine, {}));
  EXPECT_NEAR(report["ratio"].get<double>(), 1.92, 1e-9);
  EXPECT_EQ(report["rules"][0]["idle"], nlohmann::json({"h0.nic1", "h0.nic2"}));
  EXPECT_TRUE(report["rules"][2]["idle"].empty());
  EXPECT_NE(report["words"][0].get<std::string>().find("2 of 4 NICs are idle: h0.nic1, h0.nic2"),
            std::string::npos);
  NicReportRequest again;
  again.graph = report["graph"].get<std::string>();
  const auto judged = nlohmann::json::parse(nic_report(machine, again));
  EXPECT_EQ(judged["rules"][3]["busbw_gbps"], judged["rules"][2]["busbw_gbps"]);
}

TEST(NicReport, JudgesAHostAloneAsAPair) {
  const topology::Topology host = topology::synthetic("4gpu 4pcie 2cpu 4nic@6.25 gen3");
  EXPECT_GT(nlohmann::json::parse(nic_report(host, {}))["ratio"].get<double>(), 1.5);
}

TEST(ChannelRings, RefusesWhatHasNoChannels) {
  const topology::Topology machine = topology::testing::machine("rccl-4gpu-4nic-x2");
  ChannelRequest request;
  for (const int host : {-1, 2}) {
    request.host = host;
    const std::string wanted = fmt::format("has 2 hosts, not one with number {}", host);
    EXPECT_THAT([&] { make_channels(machine, request); }, ThrowsMessage<Error>(HasSubstr(wanted)));
  }
  request.host = 0;
  request.channels = 99;
  EXPECT_THROW(make_channels(machine, request), Error);
  EXPECT_THROW(make_channels(topology::testing::machine("h200-2gpu"), {}), Error);
  EXPECT_THROW(nic_report(topology::testing::machine("h200-2gpu"), {}), Error);
  // One host has no ring over NICs.
  const topology::Topology alone = topology::testing::machine("dgx-h100");
  EXPECT_THROW(plan_of_channels(alone, make_channels(alone, {})), Error);
  const auto graphs = graph_of_channels(machine, make_channels(machine, {}), 6);
  auto wrong = graphs;
  wrong[0].channels[0].gpus[0].dev = 9;
  EXPECT_THROW(channels_of_graph(machine, 0, wrong), Error);
  wrong = graphs;
  wrong[0].channels[0].nets[0] = 9;
  EXPECT_THROW(channels_of_graph(machine, 0, wrong), Error);
  wrong = graphs;
  wrong[0].channels[0].gpus.pop_back();
  EXPECT_THROW(channels_of_graph(machine, 0, wrong), Error);
  wrong = {graphs[1]};
  EXPECT_THROW(channels_of_graph(machine, 0, wrong), Error);
}

}  // namespace
}  // namespace ropewalk::plan
