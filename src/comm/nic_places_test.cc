#include "comm/nic_places.h"

#include <gtest/gtest.h>
#include <source_dir.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "topology/named.h"

namespace ropewalk::comm {
namespace {

using transport::DeviceProperties;

Machine paper() {
  const topology::Topology whole =
      topology::named(RW_SOURCE_DIR "/tests/topologies/rccl-4gpu-4nic-x2.json");
  auto planned = std::make_shared<const topology::Topology>(whole);
  return Machine{.topology = whole,
                 .node_of_rank = planned->gpus(),
                 .planned = planned,
                 .origin = "a test",
                 .described = true};
}

std::vector<DeviceProperties> devices(int count) {
  std::vector<DeviceProperties> found(static_cast<std::size_t>(count));
  for (std::size_t d = 0; d < found.size(); ++d) found[d].name = "eth" + std::to_string(d);
  return found;
}

TEST(NicPositions, AsManyAsTheHostHasAreTheSameInOrder) {
  const Machine machine = paper();
  const std::vector<link::NicPosition> positions = place_nics(machine, 6, devices(4));
  for (int d = 0; d < 4; ++d) {
    const auto node = static_cast<std::size_t>(positions[static_cast<std::size_t>(d)].node);
    EXPECT_EQ(machine.planned->node(node).id, "h1.nic" + std::to_string(d));
  }
  EXPECT_LT(positions[2].distance, positions[0].distance);
  EXPECT_EQ(positions[0].distance, positions[1].distance);
}

TEST(NicPositions, OtherNumbersAreNotGuessed) {
  for (const link::NicPosition& position : place_nics(paper(), 0, devices(3))) {
    EXPECT_EQ(position.node, -1);
  }
}

TEST(NicPositions, ANamedOneIsFoundByItsName) {
  topology::Description described = paper().planned->description();
  for (topology::Node& node : described.nodes) {
    if (node.id == "h0.nic2") node.device = "eth1";
  }
  Machine machine = paper();
  machine.planned = std::make_shared<const topology::Topology>(topology::Topology(described));
  const std::vector<link::NicPosition> positions = place_nics(machine, 0, devices(4));
  EXPECT_EQ(machine.planned->node(static_cast<std::size_t>(positions[1].node)).id, "h0.nic2");
  EXPECT_EQ(positions[0].node, -1);
}

TEST(NicPositions, ARouteLeavesByTheFirstAndEntersByTheLast) {
  const Machine machine = paper();
  const topology::Topology& topology = *machine.planned;
  const auto link = [&](const char* from, const char* to, topology::LinkType type) {
    return static_cast<int>(topology.find_link(topology.at(from), topology.at(to), type).value());
  };
  const link::NicsOfRoute nics = nics_of_routes(machine);
  const link::RouteNics found = nics({link("h0.gpu3", "h0.plx3", topology::LinkType::kPcie),
                                      link("h0.plx3", "h0.nic3", topology::LinkType::kPcie),
                                      link("h0.nic3", "net0", topology::LinkType::kNet),
                                      link("net0", "h1.nic0", topology::LinkType::kNet)});
  EXPECT_EQ(found.exit, static_cast<int>(topology.at("h0.nic3")));
  EXPECT_EQ(found.entry, static_cast<int>(topology.at("h1.nic0")));
  EXPECT_EQ(nics({link("h0.gpu3", "h0.plx3", topology::LinkType::kPcie)}).exit, -1);
}

TEST(NicPositions, ByNumaNodeWhereNobodyDescribedTheMachine) {
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("nic-positions-" + std::to_string(getpid()));
  const auto write = [&](const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  };
  write(root / "devices/system/node/node0/cpulist", "0-3");
  write(root / "devices/system/node/node1/cpulist", "4-7");
  std::vector<DeviceProperties> found = devices(3);
  for (int d = 0; d < 2; ++d) {
    const std::filesystem::path device = root / ("pci" + std::to_string(d));
    write(device / "numa_node", std::to_string(d));
    found[static_cast<std::size_t>(d)].pci_path = device.string();
  }
  const auto positions = place_nics(tune::Processors::of_list("5"), found, root);
  EXPECT_EQ(positions[0].distance, 1);
  EXPECT_EQ(positions[1].distance, 0);
  EXPECT_EQ(positions[2].distance, 0);
  std::filesystem::remove_all(root);
}

// Four nodes on two sockets: a NIC at the other node of one's own socket comes before one of the
// other socket.
TEST(NicPositions, FarNumaNodesAreFartherThanNearOnes) {
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("nic-distances-" + std::to_string(getpid()));
  const auto write = [&](const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  };
  const std::vector<std::string> distances = {"10 12 32 32", "12 10 32 32", "32 32 10 12",
                                              "32 32 12 ten"};
  std::vector<DeviceProperties> found = devices(4);
  for (int d = 0; d < 4; ++d) {
    const auto index = static_cast<std::size_t>(d);
    const std::filesystem::path node = root / "devices/system/node" / ("node" + std::to_string(d));
    write(node / "cpulist", std::to_string(d));
    write(node / "distance", distances[index]);
    const std::filesystem::path device = root / ("pci" + std::to_string(d));
    write(device / "numa_node", std::to_string(d));
    found[index].pci_path = device.string();
  }
  const auto of_cpus = [&](const char* cpus) {
    std::vector<int> all;
    for (const auto& position : place_nics(tune::Processors::of_list(cpus), found, root)) {
      all.push_back(position.distance);
    }
    return all;
  };
  EXPECT_EQ(of_cpus("1"), (std::vector{2, 0, 22, 22}));
  EXPECT_EQ(of_cpus("1-2"), (std::vector{2, 0, 0, 2}));
  EXPECT_EQ(of_cpus("3"), (std::vector{22, 22, 2, 0}));
  EXPECT_EQ(of_cpus("9"), (std::vector{1, 1, 1, 1}));  // at none of them
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace ropewalk::comm
