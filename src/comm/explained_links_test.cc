// Bounds and limiting links of GPUs that were found: machines made here, with addresses as sysfs
// has them, ranks placed on them, candidates priced as GPUs are, without the machine.
#include "comm/explained_links.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "machine/placement.h"
#include "topology/merge.h"
#include "topology/synthetic.h"
#include "topology/testing/recorded.h"
#include "tune/tuner.h"

namespace ropewalk::comm {
namespace {

using topology::Topology;

constexpr std::size_t kLongUnit = std::size_t{64} << 20;

std::string address(int gpu) { return fmt::format("0000:{:02x}:00.0", 0x10 + gpu); }

Topology with_addresses(const Topology& machine) {
  topology::Description made = machine.description();
  int gpu = 0;
  for (topology::Node& node : made.nodes) {
    if (node.kind == topology::NodeKind::kGpu) node.bus_id = address(gpu++);
  }
  return Topology(std::move(made));
}

// GPUs that ranks found: rank r has the GPU `gpus[r]` of its host.
std::shared_ptr<const Topology> found(const Topology& whole, const std::vector<int>& host_of_rank,
                                      const std::vector<int>& gpus) {
  machine::Machine machine{whole, std::vector<topology::NodeIndex>(gpus.size()), nullptr, "found"};
  std::vector<std::string> bus_ids;
  for (const int gpu : gpus) bus_ids.push_back(address(gpu));
  return place(std::move(machine), bus_ids, host_of_rank).planned;
}

std::vector<tune::Choice> candidates(const Topology& machine, Collective collective,
                                     const std::vector<int>& host_of_rank) {
  Config config = Config::load();
  config.set("TUNE", "0", "test");
  tune::DeviceLimits limits;
  limits.channels = 16;
  limits.slot_bytes = {128 << 10, 8192, 20400};
  tune::GroupFacts facts;
  facts.num_ranks = static_cast<int>(machine.gpus().size());
  if (machine.hosts() > 1) {
    facts.num_hosts = machine.hosts();
    facts.host_of_rank = host_of_rank;
    limits.network = true;
  }
  schedule::CheckedSchedules schedules;
  tune::Tuner tuner = tune::device_tuner(config, facts, limits, {}, schedules);
  std::vector<tune::Choice> priced = tuner.priced(collective, 0, kLongUnit);
  for (const tune::Choice& choice : priced) EXPECT_EQ(choice.algbw_gbps, 0) << choice.algorithm;
  tuner.add_limits(machine, collective, 0, priced);
  return priced;
}

// Within the bound, and each with links that are full at that rate.
void expect_limits(const Topology& machine, Collective collective,
                   const std::vector<int>& host_of_rank) {
  SCOPED_TRACE(fmt::format("{} on {}", name(collective), machine.name()));
  const nlohmann::json bound = bound_on(machine, collective, 0);
  ASSERT_FALSE(bound.is_null());
  EXPECT_FALSE(bound["words"].get<std::string>().empty());
  const double most = bound["algbw_gbps"];
  for (const tune::Choice& choice : candidates(machine, collective, host_of_rank)) {
    SCOPED_TRACE(choice.algorithm);
    EXPECT_GT(choice.algbw_gbps, 0);
    EXPECT_LE(choice.algbw_gbps, most * (1 + 1e-9));
    const nlohmann::json links = limiting_links(machine, choice);
    EXPECT_GE(links.size(), 1U);
    for (const nlohmann::json& link : links) {
      EXPECT_NEAR(link["load"].get<double>(), link["capacity"].get<double>(), 1e-3);
    }
  }
}

std::vector<int> numbers(int count) {
  std::vector<int> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST(ExplainedLinks, OfFoundGpusOfAHost) {
  for (const char* name : {"dgx1v", "dgx-a100", "dgx-h100", "h200-4gpu", "pcie-8gpu-2numa"}) {
    const Topology machine = with_addresses(topology::testing::machine(name));
    const int gpus = static_cast<int>(machine.gpus().size());
    const std::vector<int> one_host(machine.gpus().size());
    const auto placed = found(machine, one_host, numbers(gpus));
    ASSERT_NE(placed, nullptr);
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
          Collective::kBroadcast, Collective::kReduce}) {
      expect_limits(*placed, collective, one_host);
    }
  }
}

// The GPUs of ranks in another order than the machine's: links are named by the machine's nodes.
TEST(ExplainedLinks, AreNamedAsTheMachineNamesThem) {
  const Topology machine = with_addresses(topology::testing::machine("dgx1v"));
  const std::vector<int> gpus = {5, 1};
  const auto placed = found(machine, {0, 0}, gpus);
  ASSERT_NE(placed, nullptr);
  ASSERT_EQ(placed->gpus().size(), 2U);
  const std::vector<std::string> ids = {placed->node(placed->gpus()[0]).id,
                                        placed->node(placed->gpus()[1]).id};
  EXPECT_EQ(placed->node(placed->gpus()[0]).bus_id, address(5));
  std::set<std::string> named;
  for (const tune::Choice& choice : candidates(*placed, Collective::kAllReduce, {0, 0})) {
    if (choice.algorithm != "ring") continue;
    for (const nlohmann::json& link : limiting_links(*placed, choice)) {
      EXPECT_EQ(link["type"], "nvlink");
      named.insert(link["link"]);
    }
  }
  EXPECT_EQ(named, (std::set<std::string>{ids[0] + "->" + ids[1], ids[1] + "->" + ids[0]}));
}

// What leaves a host goes over its NIC, which limits.
TEST(ExplainedLinks, OfHostsAreTheirNics) {
  const Topology one = with_addresses(topology::synthetic("1cpu 4gpu nvswitch 1nic"));
  const Topology both = topology::merge(std::vector(2, one), topology::Fabric::kOne);
  const std::vector<int> hosts = {0, 0, 0, 0, 1, 1, 1, 1};
  const auto placed = found(both, hosts, {0, 1, 2, 3, 0, 1, 2, 3});
  ASSERT_NE(placed, nullptr);
  for (const Collective collective : {Collective::kAllReduce, Collective::kReduce}) {
    expect_limits(*placed, collective, hosts);
    for (const tune::Choice& choice : candidates(*placed, collective, hosts)) {
      if (choice.algorithm != "hierarchical") continue;
      for (const nlohmann::json& link : limiting_links(*placed, choice)) {
        EXPECT_THAT(link["link"].get<std::string>(), ::testing::HasSubstr("nic"));
      }
    }
  }
}

TEST(ExplainedLinks, AreNoneWhereNoPlanCouldBe) {
  const Topology machine = with_addresses(topology::testing::machine("dgx1v"));
  const std::vector<int> eight(8);
  const auto placed = found(machine, eight, numbers(8));
  EXPECT_TRUE(bound_on(*placed, Collective::kAllToAll, 0).is_null());
  EXPECT_TRUE(bound_on(*found(machine, {0}, {3}), Collective::kAllReduce, 0).is_null());
  // Ranks that share a GPU have no node of their own.
  EXPECT_EQ(found(machine, {0, 0}, {3, 3}), nullptr);
  // All-to-alls load links, though none are planned.
  for (const tune::Choice& choice : candidates(*placed, Collective::kAllToAll, eight)) {
    EXPECT_GT(choice.algbw_gbps, 0) << choice.algorithm;
  }
}

}  // namespace
}  // namespace ropewalk::comm
