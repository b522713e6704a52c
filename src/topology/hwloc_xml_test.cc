#include "topology/hwloc_xml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/testing/in_child.h"
#include "topology/distance.h"
#include "topology/nccl_form.h"
#include "topology/nccl_xml.h"
#include "topology/testing/recorded.h"

namespace ropewalk::topology {
namespace {

using ropewalk::testing::complaint;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Topology recorded(const std::string& name) {
  return read_hwloc_xml(testing::file_text("hwloc/" + name + ".xml"), name + ".xml");
}

std::string hwloc_complaint(const std::string& text) {
  return complaint([&] { (void)read_hwloc_xml(text, "t.xml"); });
}

TEST(HwlocXml, ADocumentWithoutElementsIsRefusedAtItsEnd) {
  EXPECT_THAT(hwloc_complaint("\n"), StartsWith("t.xml: line 2: "));
  EXPECT_THAT(hwloc_complaint(""), StartsWith("t.xml: line 1: "));
}

TEST(HwlocXml, ReadsSwitchesGpusAndNics) {
  const Topology topology = recorded("dgx1-like");
  EXPECT_EQ(topology.gpus().size(), 8U);
  EXPECT_EQ(topology.nodes_of(NodeKind::kNic).size(), 4U);
  EXPECT_EQ(topology.nodes_of(NodeKind::kCpu).size(), 2U);
  // The bridges of a switch (one above, one below per device) are one switch.
  EXPECT_EQ(topology.nodes_of(NodeKind::kPcieSwitch).size(), 4U);
  const Node& gpu = topology.node(topology.gpus()[5]);
  EXPECT_EQ(gpu.bus_id, "0000:94:00.0");
  EXPECT_EQ(gpu.model, "Tesla V100-SXM2-16GB");
  EXPECT_EQ(gpu.numa, 1);
  const Node& nic = topology.node(topology.nodes_of(NodeKind::kNic)[1]);
  EXPECT_EQ(nic.device, "mlx5_1");  // not ib1, its network interface
  EXPECT_EQ(topology.node(topology.at("cpu1")).cpus, "8-15");
  const auto link = topology.find_link(topology.gpus()[0], topology.at("plx0"), LinkType::kPcie);
  ASSERT_TRUE(link);
  EXPECT_EQ(topology.link(*link).gen, 3);
  EXPECT_EQ(topology.link(*link).width, 16);
  EXPECT_EQ(topology.link(*link).capacity, 12);
  // Broadwell by its family and model.
  const auto smp = topology.find_link(topology.at("cpu0"), topology.at("cpu1"), LinkType::kSmp);
  ASSERT_TRUE(smp);
  EXPECT_EQ(topology.link(*smp).capacity, 6);
}

TEST(HwlocXml, DistinguishesHostBridges) {
  const Topology topology = recorded("dgx1-like");
  const Distances distances(topology);
  const auto between = [&](std::size_t a, std::size_t b) {
    return distances.between(topology.gpus()[a], topology.gpus()[b]).text();
  };
  EXPECT_EQ(between(0, 1), "PIX");
  EXPECT_EQ(between(0, 2), "NODE");
  EXPECT_EQ(between(0, 4), "SYS");
}

TEST(HwlocXml, AReadMachineCanBeWrittenForNccl) {
  const NcclXml xml = write_nccl_xml(recorded("dgx1-like"), 0);
  check_nccl_form(xml.text, "written");
  EXPECT_EQ(read_nccl_xml(xml.text, "written").gpus().size(), 8U);
}

TEST(HwlocXml, ReadsMachinesWithoutGpus) {
  EXPECT_EQ(recorded("two-sockets").nodes().size(), 2U);
  EXPECT_EQ(recorded("eight-nodes").nodes().size(), 8U);
  EXPECT_EQ(recorded("eight-nodes").links().size(), 56U);
  const Topology vm = recorded("vm-2cpus");
  EXPECT_EQ(vm.nodes_of(NodeKind::kNic).size(), 1U);
  EXPECT_EQ(vm.gpus().size(), 0U);
  EXPECT_THAT(vm.description().assumptions,
              ElementsAre(HasSubstr("the PCIe link of 0000:00:03.0 is not known")));
}

TEST(HwlocXml, ReadsARecordedMachineWithTwoH200) {
  const Topology topology = recorded("h200-2gpu");
  ASSERT_EQ(topology.gpus().size(), 2U);
  EXPECT_EQ(topology.node(topology.gpus()[1]).bus_id, "0000:00:07.0");
  const auto link = topology.find_link(topology.gpus()[0], topology.at("cpu0"), LinkType::kPcie);
  ASSERT_TRUE(link);
  EXPECT_EQ(topology.link(*link).gen, 5);
  EXPECT_EQ(topology.link(*link).width, 16);
  EXPECT_EQ(topology.node(topology.at("cpu0")).cpus, "0-31");
}

TEST(HwlocXml, NamesFileAndLineOfAnError) {
  EXPECT_THAT(hwloc_complaint(""), StartsWith("t.xml: line 1: "));
  EXPECT_THAT(hwloc_complaint("<topology version=\"1.0\"/>"),
              StartsWith("t.xml: line 1: <topology version=\"1.0\"> where"));
  EXPECT_THAT(hwloc_complaint("<topology version=\"2.0\">\n<object"),
              StartsWith("t.xml: line 2: "));
  const auto with = [](const std::string& object) {
    return hwloc_complaint("<topology version=\"2.0\">\n" + object + "</topology>");
  };
  EXPECT_EQ(with("<object type=\"Machine\"/>"), "");
  EXPECT_THAT(with("<object type=\"NUMANode\" cpuset=\"0x1\"/>"),
              StartsWith("t.xml: line 2: <object> has no os_index"));
  EXPECT_THAT(with("<object type=\"NUMANode\" os_index=\"-1\" cpuset=\"0x1\"/>"),
              StartsWith("t.xml: line 2: os_index -1"));
  EXPECT_THAT(with("<object type=\"NUMANode\" os_index=\"0\" cpuset=\"rope\"/>"),
              StartsWith("t.xml: line 2: \"rope\" is not a mask"));
  EXPECT_THAT(with("<object type=\"PCIDev\"/>"),
              StartsWith("t.xml: line 2: <object> has no pci_type"));
  EXPECT_THAT(with("<object type=\"PCIDev\" pci_type=\"0302 [10de:1]\" pci_busid=\"x\" "
                   "pci_link_speed=\"nan\"/>"),
              StartsWith("t.xml: line 2: pci_link_speed=\"nan\" of <object> is not a number"));
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += "<object type=\"Group\">";
  for (int i = 0; i < 200; ++i) deep += "</object>";
  EXPECT_THAT(with(deep), HasSubstr("deeper than 128"));
}

}  // namespace
}  // namespace ropewalk::topology
