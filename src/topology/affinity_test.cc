#include "topology/affinity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "topology/building.h"
#include "topology/read.h"
#include "topology/replicate.h"
#include "topology/synthetic.h"
#include "topology/testing/recorded.h"

namespace ropewalk::topology {
namespace {

std::vector<std::string> chosen_nics(const Topology& topology, int size, int host = 0) {
  std::vector<std::string> found;
  for (const Placement& each : place_ranks(topology, Distances(topology), host, size)) {
    found.push_back(each.nics.empty() ? "-" : topology.node(each.nics[0]).id);
  }
  return found;
}

TEST(Affinity, EachRankGetsItsGpuAndNumaNode) {
  const Topology topology = testing::machine("dgx-a100");
  const std::vector<Placement> placed = place_ranks(topology, Distances(topology), 0, 8);
  ASSERT_EQ(placed.size(), 8U);
  for (std::size_t rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(placed[rank].gpu, topology.gpus()[rank]);
    EXPECT_EQ(placed[rank].cpu, topology.at(rank < 4 ? "cpu0" : "cpu1"));
    EXPECT_EQ(placed[rank].nic_path, PathClass::kPix);
  }
}

TEST(Affinity, NearestNicsAreSharedEvenly) {
  EXPECT_THAT(
      chosen_nics(testing::machine("dgx-a100"), 8),
      ::testing::ElementsAre("nic0", "nic1", "nic2", "nic3", "nic4", "nic5", "nic6", "nic7"));
  // Two GPUs to a NIC.
  EXPECT_THAT(chosen_nics(testing::machine("dgx1v"), 4),
              ::testing::ElementsAre("nic0", "nic0", "nic1", "nic1"));
  EXPECT_THAT(chosen_nics(testing::machine("h200-2gpu"), 2), ::testing::ElementsAre("-", "-"));
  EXPECT_THAT(chosen_nics(testing::machine("dgx-a100-x2"), 2, 1),
              ::testing::ElementsAre("h1.nic0", "h1.nic1"));
}

TEST(Affinity, WithoutGpusRanksSpreadOverNumaNodes) {
  const Topology topology = synthetic("4cpu nic");
  const std::vector<Placement> placed = place_ranks(topology, Distances(topology), 0, 8);
  EXPECT_EQ(placed[0].gpu, std::nullopt);
  EXPECT_EQ(placed[1].cpu, topology.at("cpu0"));
  EXPECT_EQ(placed[7].cpu, topology.at("cpu3"));
}

TEST(Affinity, MoreRanksThanGpusTakeTurns) {
  const Topology topology = synthetic("2gpu nvswitch");
  const std::vector<Placement> placed = place_ranks(topology, Distances(topology), 0, 4);
  EXPECT_EQ(placed[3].gpu, topology.gpus()[1]);
  EXPECT_THROW((void)place_ranks(topology, Distances(topology), 1, 4), Error);
  EXPECT_THROW((void)place_ranks(topology, Distances(topology), 0, 0), Error);
}

TEST(Building, CpuListsAndMasks) {
  EXPECT_EQ(cpu_mask("0-3,8"), "0000010f");
  EXPECT_EQ(cpu_list("0000010f"), "0-3,8");
  EXPECT_EQ(cpu_mask("0,32-33"), "00000003,00000001");
  EXPECT_EQ(cpu_list("00000003,00000001"), "0,32-33");
  EXPECT_EQ(cpu_list("0x3,,0x1"), "0,64-65");  // hwloc's form
  EXPECT_EQ(cpu_list(""), "");
  for (const char* list : {"0", "0-127", "1,3,5-7,4095", "65535"}) {
    EXPECT_EQ(cpu_list(cpu_mask(list)), list);
  }
  for (const char* bad : {"x", "1-", "-1", "65536", "1;2"}) {
    EXPECT_THROW((void)cpu_mask(bad), Error) << bad;
  }
  EXPECT_THROW((void)cpu_list("123456789"), Error);
  EXPECT_THROW((void)cpu_list("0xg"), Error);
}

TEST(Read, DistinguishesFormats) {
  for (const char* file :
       {"dgx1v.json", "nccl/dgx-a100.xml", "nccl/pcie-4gpu-4nic.xml", "hwloc/dgx1-like.xml"}) {
    EXPECT_GE(read_topology(testing::file_text(file), file).gpus().size(), 4U) << file;
  }
  for (const char* bad : {"", "  \n", "rope", "<rope/>", "[]", "\"x\""}) {
    EXPECT_THROW((void)read_topology(bad, "x"), Error) << bad;
  }
}

TEST(Replicate, CopiesOfARecordedHostAreTheRecordedPair) {
  const Topology pair = replicate(testing::machine("dgx-a100"), 2, Fabric::kOne);
  const Topology recorded = testing::machine("dgx-a100-x2");
  EXPECT_EQ(pair.nodes().size(), recorded.nodes().size());
  EXPECT_EQ(pair.links().size(), recorded.links().size());
  EXPECT_TRUE(pair.symmetric());
  EXPECT_TRUE(pair.unreachable_gpus().empty());
  EXPECT_EQ(pair.plane("all").links().size(), pair.links().size());
  EXPECT_EQ(replicate(testing::machine("dgx-a100"), 3, Fabric::kRails)
                .nodes_of(NodeKind::kNetwork)
                .size(),
            8U);
}

TEST(Replicate, RefusesHostsThatCannotBeJoined) {
  EXPECT_THROW((void)replicate(testing::machine("h200-2gpu"), 2, Fabric::kOne), Error);
  EXPECT_THROW((void)replicate(testing::machine("dgx-a100-x2"), 2, Fabric::kOne), Error);
  EXPECT_THROW((void)replicate(testing::machine("dgx-a100"), 0, Fabric::kOne), Error);
  EXPECT_THROW((void)replicate(testing::machine("dgx-a100"), 1 << 30, Fabric::kOne), Error);
}

}  // namespace
}  // namespace ropewalk::topology
