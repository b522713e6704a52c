#include "machine/nic_places.h"

#include <gtest/gtest.h>
#include <source_dir.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "topology/named.h"

namespace ropewalk::machine {
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

// Of a made machine's PCI devices: "bus/pci/devices/0000:3b:00.0" leads to "devices/pci.../...".
class MadeBus : public ::testing::Test {
 protected:
  ~MadeBus() override { std::filesystem::remove_all(root_); }
  std::string add(const std::string& path, int numa) {
    const std::filesystem::path device = root_ / "devices" / path;
    std::filesystem::create_directories(device);
    std::ofstream(device / "numa_node") << numa << "\n";
    const std::filesystem::path bus = root_ / "bus/pci/devices";
    std::filesystem::create_directories(bus);
    std::filesystem::create_directory_symlink(device, bus / device.filename());
    return device.string();
  }
  void add_node(int node, const std::string& distances) {
    const std::filesystem::path folder =
        root_ / "devices/system/node" / ("node" + std::to_string(node));
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "distance") << distances << "\n";
  }
  [[nodiscard]] std::vector<int> distances(const char* gpu,
                                           const std::vector<std::string>& nics) const {
    std::vector<DeviceProperties> found = devices(static_cast<int>(nics.size()));
    for (std::size_t d = 0; d < nics.size(); ++d) found[d].pci_path = nics[d];
    std::vector<int> all;
    for (const auto& position : nic_positions_near_gpu(gpu, found, root_)) {
      EXPECT_EQ(position.node, -1);
      all.push_back(position.distance);
    }
    return all;
  }
  std::filesystem::path root_ =
      std::filesystem::temp_directory_path() / ("nics-of-gpus-" + std::to_string(getpid()));
};

TEST_F(MadeBus, NicsOfAGpusSwitchAreNearestThenThoseOfItsCpu) {
  add_node(0, "10 12 32");
  add_node(1, "12 10 32");
  add_node(2, "32 32 10");
  add("pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:00.0/0000:3d:00.0", 0);
  const std::vector<std::string> nics = {
      add("pci0000:d0/0000:d0:00.0/0000:d1:00.0", 2),
      add("pci0000:a0/0000:a0:00.0/0000:a1:00.0", 1),
      add("pci0000:3a/0000:3a:01.0/0000:40:00.0", 0),
      add("pci0000:60/0000:60:00.0/0000:61:00.0/0000:62:00.0/0000:63:00.0", 0),
      add("pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:01.0/0000:3e:00.0", 0),
      ""};
  const std::vector<int> found = distances("0000:3D:00.0", nics);
  EXPECT_EQ(found[5], 0);  // at none
  EXPECT_LT(found[1], found[0]);
  EXPECT_LT(std::max(found[2], found[3]), found[1]);
  EXPECT_LT(found[4], std::min(found[2], found[3]));
  // A NIC of several functions is as near by each.
  const std::vector<std::string> ports = {
      add("pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:02.0/0000:3f:00.0", 0),
      add("pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:02.0/0000:3f:00.1", 0)};
  const std::vector<int> both = distances("0000:3d:00.0", ports);
  EXPECT_EQ(both[0], both[1]);
}

TEST_F(MadeBus, NothingIsKnownOfAGpuThatIsAtNoBus) {
  const std::vector<std::string> nics = {add("pci0000:a0/0000:a0:00.0/0000:a1:00.0", 1)};
  EXPECT_EQ(distances("0000:3d:00.0", nics), std::vector{0});
}

TEST(NicsInUse, AreThoseOfTheFirstRailFirst) {
  const std::vector<link::Nic> nics(3, link::Nic{});
  const std::vector<link::NicPosition> positions = {{-1, 9}, {-1, 1}, {-1, 4}};
  const std::vector<int> hosts = {0, 0, 1};
  const link::Rails rails =
      link::Rails({nics, nics, nics}, hosts, 8, {positions, positions, positions})
          .reordered(std::array{0, 1, 2}, std::array{3});
  EXPECT_EQ(nics_in_use(rails, 0, hosts), (std::vector{1, 2, 0}));
  EXPECT_EQ(nics_in_use(rails.reordered(std::array{2}), 2, hosts).size(), 1U);
  EXPECT_TRUE(nics_in_use(rails, 0, std::vector{0, 0, 0}).empty());
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
}  // namespace ropewalk::machine
