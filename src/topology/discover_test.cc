// Discovery over made-up /sys trees and a stand-in for NVML.
#include "topology/discover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "topology/distance.h"
#include "topology/hwloc_xml.h"
#include "topology/nvml.h"
#include "topology/scan.h"
#include "topology/sysfs.h"
#include "topology/testing/recorded.h"

namespace ropewalk::topology {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// A folder with sys/ and proc/, removed at the end.
class FakeRoot {
 public:
  FakeRoot() {
    std::string pattern = (fs::temp_directory_path() / "ropewalk-sysfs-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
  }
  ~FakeRoot() { fs::remove_all(root_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  [[nodiscard]] const fs::path& path() const { return root_; }

  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << "\n";
  }

  /// A PCI function below sys/devices, linked from sys/bus/pci/devices.
  fs::path function(const fs::path& below, const std::string& pci_class, const std::string& vendor,
                    const std::string& speed = "", int width = 0) const {
    const fs::path folder = fs::path("sys/devices") / below;
    write(folder / "class", "0x" + pci_class + "00");
    write(folder / "vendor", "0x" + vendor);
    write(folder / "device", "0x1234");
    write(folder / "numa_node", "1");
    if (!speed.empty()) {
      write(folder / "max_link_speed", speed);
      write(folder / "max_link_width", std::to_string(width));
      write(folder / "current_link_speed", "2.5 GT/s PCIe");  // idle
    }
    const fs::path bus = root_ / "sys/bus/pci/devices";
    fs::create_directories(bus);
    fs::create_directory_symlink(root_ / folder, bus / below.filename());
    return folder;
  }

  /// Two NUMA nodes; on the second one a switch with a GPU and a NIC.
  void make_two_sockets() const {
    write("sys/devices/system/node/node0/cpulist", "0-3");
    write("sys/devices/system/node/node1/cpulist", "4-7");
    write("sys/devices/system/cpu/offline", "");
    write(
        "proc/cpuinfo",
        "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: "
        "Xeon\n");
    const fs::path root = "pci0000:80/0000:80:01.0";
    function(root, "0604", "8086", "32.0 GT/s PCIe", 16);
    function(root / "0000:81:00.0", "0604", "1000", "32.0 GT/s PCIe", 16);
    function(root / "0000:81:00.0/0000:82:00.0", "0604", "1000", "16.0 GT/s PCIe", 16);
    function(root / "0000:81:00.0/0000:82:01.0", "0604", "1000", "32.0 GT/s PCIe", 16);
    // The GPU could do gen 5, its port gen 4.
    function(root / "0000:81:00.0/0000:82:00.0/0000:83:00.0", "0302", "10de", "32.0 GT/s PCIe", 16);
    const fs::path nic = function(root / "0000:81:00.0/0000:82:01.0/0000:84:00.0", "0207", "15b3",
                                  "32.0 GT/s PCIe", 16);
    write(nic / "infiniband/mlx5_7/node_guid", "b83f:d203:00aa:0102");
    write(nic / "infiniband/mlx5_7/ports/1/rate", "400 Gb/sec (4X NDR)");
    write(nic / "net/ibs7/speed", "-1");
    function("pci0000:80/0000:80:1f.0", "0300", "1a03");  // a console, no GPU
    function("pci0000:80/0000:80:1e.0", "0200", "8086");  // a NIC without a driver
  }

 private:
  fs::path root_;
};

DiscoverOptions options(const FakeRoot& root) {
  return {.hwloc_library = "libnot-there.so.1",
          .nvml_library = "libnot-there-either.so.1",
          .root = root.path()};
}

TEST(Discover, BySysfsAlone) {
  const FakeRoot root;
  root.make_two_sockets();
  const Topology topology = discover(options(root));
  EXPECT_EQ(topology.gpus().size(), 1U);
  EXPECT_EQ(topology.nodes_of(NodeKind::kCpu).size(), 2U);
  EXPECT_EQ(topology.nodes_of(NodeKind::kPcieSwitch).size(), 1U);
  ASSERT_EQ(topology.nodes_of(NodeKind::kNic).size(), 1U);
  const Node& nic = topology.node(topology.nodes_of(NodeKind::kNic)[0]);
  EXPECT_EQ(nic.device, "mlx5_7");
  EXPECT_EQ(nic.net_gbps, 50);
  EXPECT_EQ(nic.numa, 1);
  const auto link = topology.find_link(topology.gpus()[0], topology.at("plx0"), LinkType::kPcie);
  ASSERT_TRUE(link);
  EXPECT_EQ(topology.link(*link).gen, 4);
  const auto up = topology.find_link(topology.at("plx0"), topology.at("cpu1"), LinkType::kPcie);
  ASSERT_TRUE(up);
  EXPECT_EQ(topology.link(*up).capacity, 48);
  const auto smp = topology.find_link(topology.at("cpu0"), topology.at("cpu1"), LinkType::kSmp);
  ASSERT_TRUE(smp);
  EXPECT_EQ(topology.link(*smp).capacity, 22);
  EXPECT_EQ(
      Distances(topology).between(topology.gpus()[0], topology.nodes_of(NodeKind::kNic)[0]).text(),
      "PIX");
  EXPECT_THAT(topology.description().assumptions,
              Contains(HasSubstr("by sysfs alone: libnot-there.so.1 is not there")));
  EXPECT_THAT(topology.description().assumptions,
              Contains(HasSubstr(
                  "NVLink cannot be read from NVML: libnot-there-either.so.1 is not there")));
}

TEST(Discover, ContinuesWithTheAvailableSources) {
  // No PCI at all, no NUMA, offline CPUs.
  const FakeRoot root;
  root.write("sys/devices/system/cpu/online", "0,2");
  root.write("sys/devices/system/cpu/offline", "1");
  const Topology topology = discover(options(root));
  ASSERT_EQ(topology.nodes().size(), 1U);
  EXPECT_EQ(topology.node(0).cpus, "0,2");
  EXPECT_THAT(topology.description().assumptions,
              Contains(HasSubstr("PCI devices cannot be read")));
  EXPECT_THAT(topology.description().assumptions, Contains(HasSubstr("NUMA nodes are not told")));

  const FakeRoot empty;
  EXPECT_EQ(discover(options(empty)).nodes().size(), 1U);
}

TEST(Discover, OfflineCpusAreSaid) {
  const FakeRoot root;
  root.make_two_sockets();
  root.write("sys/devices/system/cpu/offline", "6-7");
  EXPECT_THAT(discover(options(root)).description().assumptions, Contains("CPUs 6-7 are offline"));
}

TEST(Discover, ThisHostCanBeLookedAt) {
  const Topology topology = discover();
  EXPECT_GE(topology.nodes_of(NodeKind::kCpu).size(), 1U);
}

TEST(Discover, SysfsKnowsRatesThatHwlocDoesNot) {
  const FakeRoot root;
  root.make_two_sockets();
  Scan scan;
  scan.cpus = {{0, "0-3", {}}};
  scan.devices = {{.kind = NodeKind::kGpu, .bus_id = "0000:83:00.0", .gen = 1, .width = 16}};
  add_sysfs(scan, root.path());
  EXPECT_EQ(scan.devices[0].gen, 4);
  EXPECT_EQ(scan.devices[0].numa, 1);
}

TEST(Discover, NumaNodesAreThoseOfTheSystem) {
  const FakeRoot root;
  root.make_two_sockets();
  const auto numa_of_gpu = [&](const std::string& told) {
    root.write("sys/bus/pci/devices/0000:83:00.0/numa_node", told);
    Scan scan;
    scan.devices = {{.kind = NodeKind::kGpu, .bus_id = "0000:83:00.0"}};
    add_sysfs(scan, root.path());
    return scan.devices[0].numa;
  };
  EXPECT_EQ(numa_of_gpu("0"), 0);
  EXPECT_EQ(numa_of_gpu("1"), 1);
  EXPECT_EQ(numa_of_gpu("-1"), std::nullopt) << "the system's word for none";
}

TEST(Nvml, JoinsGpusAndSwitches) {
  Scan scan = scan_hwloc_xml(testing::file_text("hwloc/dgx1-like.xml"), "dgx1-like.xml");
  add_nvml(scan, RW_STAND_IN_NVML);
  const Topology topology = assemble(scan);
  // NVML has two of the eight: the others are not for this process.
  ASSERT_EQ(topology.gpus().size(), 2U);
  EXPECT_THAT(scan.notes, Contains("GPU 0000:33:00.0 is on PCIe but not for this process"));
  EXPECT_EQ(topology.node(topology.gpus()[0]).model, "Stand-in H100");
  EXPECT_EQ(topology.nodes_of(NodeKind::kNvSwitch).size(), 1U);
  const auto to_switch =
      topology.find_link(topology.gpus()[1], topology.at("nvs0"), LinkType::kNvlink);
  ASSERT_TRUE(to_switch);
  EXPECT_EQ(topology.link(*to_switch).lanes, 2);
  EXPECT_EQ(topology.link(*to_switch).capacity, 50);
  const auto direct = topology.find_link(topology.gpus()[0], topology.gpus()[1], LinkType::kNvlink);
  ASSERT_TRUE(direct);
  EXPECT_EQ(topology.link(*direct).lanes, 1);
  EXPECT_TRUE(topology.symmetric());
}

TEST(Nvml, AddsGpusThatPciDoesNotShow) {
  Scan scan;
  scan.cpus = {{0, "0-3", {}}};
  add_nvml(scan, RW_STAND_IN_NVML);
  const Topology topology = assemble(scan);
  EXPECT_EQ(topology.gpus().size(), 2U);
  EXPECT_THAT(scan.notes, Contains("the PCIe position of GPU 0 (0000:13:00.0) cannot be read"));
  const auto link = topology.find_link(topology.gpus()[0], topology.at("cpu0"), LinkType::kPcie);
  ASSERT_TRUE(link);
  EXPECT_EQ(topology.link(*link).gen, 5);
}

TEST(Nvml, ItsAbsenceIsSaid) {
  Scan scan;
  add_nvml(scan, "libnot-there.so.1");
  EXPECT_THAT(scan.notes, ElementsAre(HasSubstr("no NVIDIA GPU was looked for")));
  // A library of that name that is none is no harm either.
  Scan other;
  add_nvml(other, "libm.so.6");
  EXPECT_THAT(other.notes, ElementsAre(HasSubstr("libm.so.6 lacks functions")));
}

TEST(Scan, NormalizesBusIds) {
  EXPECT_EQ(normal_bus_id("00000000:3B:00.0"), "0000:3b:00.0");
  EXPECT_EQ(normal_bus_id("00010000:3B:00.0"), "00010000:3b:00.0");
  EXPECT_EQ(normal_bus_id("0000:3b:00.0"), "0000:3b:00.0");
  EXPECT_EQ(normal_bus_id(""), "");
}

}  // namespace
}  // namespace ropewalk::topology
