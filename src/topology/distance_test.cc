#include "topology/distance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(Distance, HostBridgesOfOneCpuAreToldApartWhereKnown) {
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
