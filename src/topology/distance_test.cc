#include "topology/distance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "core/error.h"
#include "topology/nccl_xml.h"
#include "topology/synthetic.h"
#include "topology/testing/recorded.h"

namespace ropewalk::topology {
namespace {

std::string between(const Topology& topology, const std::string& a, const std::string& b) {
  return Distances(topology).between(topology.at(a), topology.at(b)).text();
}

TEST(Distance, Dgx1HasTheLanesThatNvidiaSmiShows) {
  // The first row of `nvidia-smi topo -m` on a DGX-1 with V100.
  const Topology topology = testing::machine("dgx1v");
  const DistanceMatrix matrix = distance_matrix(topology, Distances(topology));
  EXPECT_THAT(matrix.cells[0], ::testing::ElementsAre("X", "NV1", "NV1", "NV2", "NV2", "SYS", "SYS",
                                                      "SYS", "PIX", "PHB", "SYS", "SYS"));
  EXPECT_EQ(matrix.devices[0].label, "GPU0");
  EXPECT_EQ(matrix.devices[8].label, "NIC0");
  EXPECT_EQ(matrix.devices[4].numa, 1);
}

TEST(Distance, SwitchesCount) {
  const Topology dgx2 = testing::machine("dgx2");
  EXPECT_EQ(between(dgx2, "gpu0", "gpu15"), "NV6");
  EXPECT_EQ(between(dgx2, "gpu0", "nic0"), "PIX");
  EXPECT_EQ(between(dgx2, "gpu0", "nic1"), "PXB");
  EXPECT_EQ(between(dgx2, "gpu0", "nic2"), "PHB");
  EXPECT_EQ(between(dgx2, "gpu0", "nic7"), "SYS");
  EXPECT_EQ(between(testing::machine("dgx2-detailed"), "gpu0", "gpu15"), "NV6");
  EXPECT_EQ(between(testing::machine("h200-2gpu"), "gpu0", "gpu1"), "NV18");
  EXPECT_EQ(between(testing::machine("mi250-16gcd"), "gpu0", "gpu1"), "XG4");
}

TEST(Distance, WithoutTheFabricItIsPcie) {
  const Topology topology = testing::machine("dgx-a100");
  const Distances distances(topology);
  const NodeIndex gpu = topology.at("gpu0");
  EXPECT_EQ(distances.over_pcie(gpu, topology.at("gpu1")).path, PathClass::kPix);
  EXPECT_EQ(distances.over_pcie(gpu, topology.at("gpu2")).path, PathClass::kPhb);
  EXPECT_EQ(distances.over_pcie(gpu, topology.at("gpu4")).path, PathClass::kSys);
  EXPECT_EQ(distances.over_pcie(gpu, topology.at("gpu1")).hops, 2);
  EXPECT_EQ(distances.nearest_cpu(gpu), topology.at("cpu0"));
  EXPECT_EQ(distances.nearest_cpu(topology.at("nvs0")), std::nullopt);
}

TEST(Distance, OtherHostsAreReachedByTheNetworkOrNot) {
  const Topology pair = testing::machine("dgx-a100-x2");
  EXPECT_EQ(between(pair, "h0.gpu0", "h1.gpu0"), "NET");
  EXPECT_EQ(between(pair, "h0.gpu0", "h0.gpu7"), "NV12");
  EXPECT_EQ(between(pair.plane("nvlink+net").plane("nvlink+net"), "h0.gpu0", "h1.gpu0"), "NET");
  const Topology ethernet = testing::machine("dolphin-k2200-x2");
  EXPECT_EQ(between(ethernet, "h0.gpu0", "h1.gpu1"), "NET");
}

TEST(Distance, HostBridgesOfOneCpuAreDistinguishedIfKnown) {
  Description description = synthetic("3gpu").description();
  EXPECT_EQ(between(Topology(description), "gpu0", "gpu1"), "PHB");
  for (Node& node : description.nodes) {
    if (node.kind != NodeKind::kGpu) continue;
    node.attributes = {{"host_bridge", node.rank == 2 ? "0000:80" : "0000:00"}};
  }
  EXPECT_EQ(between(Topology(description), "gpu0", "gpu1"), "PHB");
  EXPECT_EQ(between(Topology(description), "gpu0", "gpu2"), "NODE");
}

TEST(Distance, PortsOfOneCardAreNear) {
  const Topology topology =
      read_nccl_xml(testing::file_text("nccl/dgx1v-dual-port.xml"), "dgx1v-dual-port.xml");
  const std::vector<NodeIndex> nics = topology.nodes_of(NodeKind::kNic);
  const Distances distances(topology);
  EXPECT_EQ(distances.between(nics[0], nics[1]).text(), "PIX");
  EXPECT_EQ(distances.between(topology.gpus()[0], nics[0]).text(), "PIX");
}

// Between two GPUs a description has one link of each kind: all of them count.
TEST(Distance, ParallelLinksAddUp) {
  Description description;
  description.name = "pair";
  description.nodes = {{.id = "a", .rank = 0}, {.id = "b", .rank = 1}, {.id = "c", .rank = 2}};
  const auto join = [&](NodeIndex from, NodeIndex to, LinkType type, int lanes) {
    for (const auto& [source, destination] : {std::pair(from, to), std::pair(to, from)}) {
      description.links.push_back({.source = source,
                                   .destination = destination,
                                   .type = type,
                                   .capacity = 10,
                                   .lanes = lanes});
    }
  };
  join(0, 1, LinkType::kNvlink, 4);
  join(0, 2, LinkType::kNvlink, 2);
  join(0, 1, LinkType::kXgmi, 3);
  const Topology topology(description);
  const Distances distances(topology);
  for (const auto& [from, to] : {std::pair<NodeIndex, NodeIndex>(0, 1), {1, 0}}) {
    EXPECT_EQ(distances.between(from, to).lanes, 7);
    EXPECT_EQ(distances.between(from, to).hops, 1);
  }
  EXPECT_EQ(distances.between(0, 2).text(), "NV2");
  EXPECT_EQ(distances.between(1, 2).path, PathClass::kNone);
}

TEST(Distance, TheNarrowerEndOfASwitchedPathCounts) {
  Description description;
  description.name = "switched";
  description.nodes = {{.id = "a", .rank = 0},
                       {.id = "b", .rank = 1},
                       {.id = "s", .kind = NodeKind::kNvSwitch},
                       {.id = "t", .kind = NodeKind::kNvSwitch}};
  const auto join = [&](NodeIndex gpu, NodeIndex chip, int lanes) {
    for (const auto& [from, to] : {std::pair(gpu, chip), std::pair(chip, gpu)}) {
      description.links.push_back({.source = from,
                                   .destination = to,
                                   .type = LinkType::kNvlink,
                                   .capacity = 10,
                                   .lanes = lanes});
    }
  };
  join(0, 2, 2);
  join(0, 3, 3);
  join(1, 2, 1);
  join(1, 3, 1);
  const Topology topology(description);
  EXPECT_EQ(between(topology, "a", "b"), "NV2");
  EXPECT_EQ(between(topology, "b", "a"), "NV2");
}

// Of CPUs that are equally near the first one is a device's, as in the description.
TEST(Distance, TheFirstOfTheNearestCpusIsTaken) {
  Description description;
  description.name = "between";
  description.nodes = {{.id = "far", .kind = NodeKind::kCpu},
                       {.id = "first", .kind = NodeKind::kCpu, .numa = 1},
                       {.id = "second", .kind = NodeKind::kCpu, .numa = 2},
                       {.id = "gpu", .rank = 0}};
  const auto join = [&](NodeIndex from, NodeIndex to, LinkType type) {
    description.links.push_back({.source = from, .destination = to, .type = type, .capacity = 10});
    description.links.push_back({.source = to, .destination = from, .type = type, .capacity = 10});
  };
  join(0, 1, LinkType::kSmp);
  join(3, 2, LinkType::kPcie);  // found before the other
  join(3, 1, LinkType::kPcie);
  const Topology topology(description);
  const Distances distances(topology);
  EXPECT_EQ(distances.nearest_cpu(topology.at("gpu")), topology.at("first"));
  EXPECT_EQ(distance_matrix(topology, distances).devices[0].numa, 1);
}

TEST(Distance, AThousandGpusTakeLittle) {
  const Topology topology = synthetic("128x(dgx-h100)");
  const Distances distances(topology);
  EXPECT_EQ(distances.between(topology.gpus()[0], topology.gpus()[1023]).text(), "NET");
  EXPECT_EQ(distances.between(topology.gpus()[1016], topology.gpus()[1023]).text(), "NV18");
}

TEST(Distance, HugeMachinesAreRefused) {
  EXPECT_THROW(Distances(synthetic("5000gpu")), Error);
  const Topology many = synthetic("8x(300gpu nic)");
  const Distances distances(many);
  EXPECT_THROW((void)distance_matrix(many, distances), Error);
}

}  // namespace
}  // namespace ropewalk::topology
