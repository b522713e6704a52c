#include "topology/nccl_xml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <pugixml.hpp>

#include "core/error.h"
#include "core/testing/in_child.h"
#include "topology/json.h"
#include "topology/nccl_form.h"
#include "topology/rates.h"
#include "topology/testing/recorded.h"

namespace ropewalk::topology {
namespace {

using ropewalk::testing::complaint;

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Elements and attributes with the latter sorted: what two files say, their order apart.
std::string meaning(const pugi::xml_node& element, int depth = 0) {
  std::map<std::string, std::string> attributes;
  for (const pugi::xml_attribute& each : element.attributes()) {
    attributes[each.name()] = each.value();
  }
  std::string out(static_cast<std::size_t>(depth), ' ');
  out += element.name();
  for (const auto& [key, value] : attributes) out += " " + key + "=" + value;
  out += "\n";
  for (const pugi::xml_node& child : element.children()) out += meaning(child, depth + 1);
  return out;
}
std::string meaning(const std::string& text) {
  pugi::xml_document document;
  EXPECT_TRUE(document.load_string(text.c_str()));
  return meaning(document.document_element());
}

std::vector<std::string> dumps() {
  return {"dgx-a100.xml",  "dgx1v-dual-port.xml", "gh200.xml",
          "h200-2gpu.xml", "mi250-part.xml",      "pcie-4gpu-4nic.xml"};
}

Topology dump(const std::string& file) {
  return read_nccl_xml(testing::file_text("nccl/" + file), file);
}

std::string nccl_complaint(const std::string& text) {
  return complaint([&] { (void)read_nccl_xml(text, "t.xml"); });
}

TEST(NcclXml, DumpsComeBack) {
  for (const std::string& file : dumps()) {
    SCOPED_TRACE(file);
    const std::string text = testing::file_text("nccl/" + file);
    const Topology topology = read_nccl_xml(text, file);
    EXPECT_THAT(topology.description().assumptions, ElementsAre());
    const NcclXml written = write_nccl_xml(topology, 0);
    EXPECT_EQ(meaning(written.text), meaning(text));
    EXPECT_THAT(written.notes, ElementsAre());
    // Through JSON too.
    EXPECT_EQ(write_nccl_xml(read_json(write_json(topology), "json"), 0).text, written.text);
  }
}

TEST(NcclXml, ReadsADgxA100) {
  const Topology topology = dump("dgx-a100.xml");
  EXPECT_EQ(topology.gpus().size(), 8U);
  EXPECT_EQ(topology.nodes_of(NodeKind::kNic).size(), 8U);
  EXPECT_EQ(topology.nodes_of(NodeKind::kNvSwitch).size(), 6U);
  EXPECT_EQ(topology.nodes_of(NodeKind::kCpu).size(), 4U);
  EXPECT_TRUE(topology.symmetric());
  const NodeIndex gpu = topology.gpus()[3];
  EXPECT_EQ(topology.node(gpu).bus_id, "0000:4e:00.0");
  double nvlink = 0;
  double pcie = 0;
  for (const LinkIndex l : topology.links_from(gpu)) {
    (topology.link(l).type == LinkType::kNvlink ? nvlink : pcie) += topology.link(l).capacity;
  }
  EXPECT_DOUBLE_EQ(nvlink, 300);  // 12 lanes of 25 GB/s
  EXPECT_DOUBLE_EQ(pcie, 24);     // gen 4 x16 by NCCL's figure
  const Node& nic = topology.node(topology.nodes_of(NodeKind::kNic)[0]);
  EXPECT_EQ(nic.device, "mlx5_0");
  EXPECT_DOUBLE_EQ(nic.net_gbps.value_or(0), 25);
  EXPECT_EQ(topology.node(topology.nodes_of(NodeKind::kCpu)[0]).cpus, "48-63,176-191");
}

TEST(NcclXml, ReadsDirectNvlinksAndCardsWithTwoPorts) {
  const Topology topology = dump("dgx1v-dual-port.xml");
  EXPECT_EQ(topology.nodes_of(NodeKind::kNic).size(), 8U);
  const auto lanes = [&](int a, int b) {
    const auto link =
        topology.find_link(topology.gpus()[static_cast<std::size_t>(a)],
                           topology.gpus()[static_cast<std::size_t>(b)], LinkType::kNvlink);
    return link ? topology.link(*link).lanes.value_or(0) : 0;
  };
  EXPECT_EQ(lanes(0, 3), 2);
  EXPECT_EQ(lanes(3, 7), 1);
  EXPECT_EQ(lanes(0, 7), 0);
  EXPECT_THAT(topology.unreachable_gpus(), ElementsAre());
}

TEST(NcclXml, ReadsChipToChipLinks) {
  const Topology topology = dump("gh200.xml");
  const auto link = topology.find_link(topology.gpus()[0], topology.at("cpu0"), LinkType::kC2c);
  ASSERT_TRUE(link);
  EXPECT_DOUBLE_EQ(topology.link(*link).capacity, 447.12);
}

TEST(NcclXml, WritesEveryRecordedMachineByTheRulesOfNccl) {
  for (const std::string& name : testing::machine_names()) {
    SCOPED_TRACE(name);
    const Topology topology = testing::machine(name);
    for (int host = 0; host < topology.hosts(); ++host) {
      const NcclXml written = write_nccl_xml(topology, host);
      check_nccl_form(written.text, name);
      const Topology back = read_nccl_xml(written.text, name);
      std::size_t gpus = 0;
      std::size_t nics = 0;
      double fabric = 0;
      const auto counted = [](LinkType type) {
        return type == LinkType::kNvlink || type == LinkType::kXgmi;
      };
      for (const Node& node : topology.nodes()) {
        if (node.host != host) continue;
        gpus += node.kind == NodeKind::kGpu;
        nics += node.kind == NodeKind::kNic;
      }
      EXPECT_EQ(back.gpus().size(), gpus);
      EXPECT_EQ(back.nodes_of(NodeKind::kNic).size(), nics);
      for (const Link& link : topology.links()) {
        const Node& from = topology.node(link.source);
        if (from.host == host && from.kind == NodeKind::kGpu && counted(link.type)) {
          fabric += link.lanes.value_or(0);
        }
      }
      double fabric_back = 0;
      for (const Link& link : back.links()) {
        if (back.node(link.source).kind == NodeKind::kGpu && counted(link.type)) {
          fabric_back += link.lanes.value_or(0);
        }
      }
      if (fabric > 0) {
        EXPECT_EQ(fabric_back, fabric);
      }
      // What was written says all that it says the second time too.
      EXPECT_EQ(meaning(write_nccl_xml(back, 0).text), meaning(written.text));
    }
  }
}

// Of machines that no dump describes: what a dump says of a link is kept as text.
TEST(NcclXml, WritesPcieLinksByTheirShape) {
  struct Case {
    Link link;
    std::string speed;
    std::string width;
  };
  const std::vector<Case> cases = {
      {{.capacity = 1, .gen = 5, .width = 8}, "32.0 GT/s PCIe", "8"},
      {{.capacity = 1, .nominal = pcie_nominal(3, 8)}, "8.0 GT/s PCIe", "8"},
      {{.capacity = 1, .nominal = pcie_nominal(3, 8), .width = 4}, "8.0 GT/s PCIe", "4"},
      {{.capacity = pcie_nominal(5, 16) / 1.31}, "32.0 GT/s PCIe", "16"},
      {{.type = LinkType::kC2c, .capacity = 400}, "16.0 GT/s PCIe", "16"},
  };
  for (const Case& each : cases) {
    Description description;
    description.name = "one";
    description.nodes = {{.id = "cpu0", .kind = NodeKind::kCpu, .numa = 0},
                         {.id = "gpu0", .rank = 0}};
    description.links = {each.link, each.link};
    description.links[0].source = description.links[1].destination = 1;
    pugi::xml_document document;
    const std::string text = write_nccl_xml(Topology(description), 0).text;
    ASSERT_TRUE(document.load_string(text.c_str()));
    const pugi::xml_node pci = document.select_node("//pci").node();
    EXPECT_EQ(pci.attribute("link_speed").value(), each.speed) << text;
    EXPECT_EQ(pci.attribute("link_width").value(), each.width) << text;
  }
}

TEST(NcclXml, NotesWhatTheFormatCannotExpress) {
  EXPECT_THAT(write_nccl_xml(testing::machine("dgx2-detailed"), 0).notes,
              Contains(HasSubstr("between NVSwitches")));
  EXPECT_THAT(write_nccl_xml(testing::machine("dgx-a100-x2"), 1).notes,
              Contains(HasSubstr("other hosts")));
  EXPECT_THROW(write_nccl_xml(testing::machine("dgx-a100-x2"), 2), Error);
}

TEST(NcclXml, RefusesMoreThanReadersTake) {
  Description description;
  description.name = "wide";
  description.nodes = {{.id = "cpu0", .kind = NodeKind::kCpu, .numa = 0}};
  for (int i = 0; i < 32; ++i) {
    description.nodes.push_back({.id = fmt::format("gpu{}", i), .rank = i});
    const NodeIndex gpu = description.nodes.size() - 1;
    description.links.push_back({.source = gpu, .destination = 0, .capacity = 12});
    description.links.push_back({.source = 0, .destination = gpu, .capacity = 12});
  }
  try {
    (void)write_nccl_xml(Topology(description), 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("<cpu> has more than 31 children"));
  }
}

TEST(NcclXml, RefusesABusIdOfTwoDevices) {
  Description description = testing::machine("h200-2gpu").description();
  for (Node& node : description.nodes) {
    if (node.kind == NodeKind::kGpu) node.bus_id = "0000:01:00.0";
  }
  try {
    (void)write_nccl_xml(Topology(description), 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("bus id 0000:01:00.0 is of two devices"));
  }
}

TEST(NcclXml, NamesFileAndLineOfAnError) {
  const std::string good = R"(<system version="1">
<cpu numaid="0" arch="x86_64">
<pci busid="0000:01:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
<gpu dev="0" sm="80">
<nvlink target="0000:02:00.0" count="4" tclass="0x030200"/>
</gpu>
</pci>
<pci busid="0000:02:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
<gpu dev="1" sm="80"/>
</pci>
</cpu>
</system>
)";
  EXPECT_EQ(nccl_complaint(good), "");
  const struct {
    const char* piece;
    const char* other;
    const char* message;
  } cases[] = {
      {"</system>", "", "t.xml: line 12: "},
      {"version=\"1\"", "version=\"2\"", "t.xml: line 1: version is not 1"},
      {" version=\"1\"", "", "t.xml: line 1: <system> has no version"},
      {"<cpu numaid=\"0\"", "<cpu", "t.xml: line 2: <cpu> has no numaid"},
      {"numaid=\"0\"", "numaid=\"x\"",
       "t.xml: line 2: numaid=\"x\" of <cpu> is not a whole number"},
      {"arch=\"x86_64\"", "affinity=\"zz\"", "t.xml: line 2: \"zz\" is not a mask of CPUs"},
      {"busid=\"0000:02:00.0\"", "busid=\"0000:01:00.0\"",
       "t.xml: line 8: busid 0000:01:00.0 twice"},
      {"busid=\"0000:01:00.0\" ", "", "t.xml: line 3: <pci> has no busid"},
      {"link_width=\"16\"", "link_width=\"-1\"", "t.xml: line 3: link_width -1"},
      {"count=\"4\"", "count=\"0\"", "t.xml: line 5: count 0"},
      {"count=\"4\"", "count=\"99999999999999999999\"", "t.xml: line 5: count=\"99999"},
      {"count=\"4\" ", "", "t.xml: line 5: <nvlink> has no count"},
      {"dev=\"1\"", "dev=\"0\"", "t.xml: line 9: dev 0 twice"},
      {"dev=\"1\" ", "", "t.xml: line 9: <gpu> has no dev"},
      {"<gpu dev=\"1\" sm=\"80\"/>", "<gpu dev=\"1\"/><gpu dev=\"2\"/>",
       "t.xml: line 8: <pci> holds more than one"},
      {"target=\"0000:02:00.0\"", "target=\"0000:01:00.0\"", "t.xml: line 5: leads to its own GPU"},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.other);
    std::string text = good;
    const std::size_t at = text.find(each.piece);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, std::string(each.piece).size(), each.other);
    EXPECT_THAT(nccl_complaint(text), StartsWith(each.message));
  }
  EXPECT_THAT(nccl_complaint(""), StartsWith("t.xml: line 1: "));
  EXPECT_THAT(nccl_complaint("<graphs version=\"1\"/>"),
              StartsWith("t.xml: line 1: <graphs> where <system> should be"));
  std::string deep = "<system version=\"1\"><cpu numaid=\"0\">";
  for (int i = 0; i < 100; ++i) deep += fmt::format("<pci busid=\"{}\">", i);
  for (int i = 0; i < 100; ++i) deep += "</pci>";
  EXPECT_THAT(nccl_complaint(deep + "</cpu></system>"), HasSubstr("deeper than 32"));
}

TEST(NcclXml, KeepsAnNvlinkToAGpuOfAnotherJob) {
  const std::string text = R"(<system version="1">
  <cpu numaid="0" arch="arm64">
    <pci busid="0000:01:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="80" gdr="1">
        <nvlink target="0000:09:00.0" count="4" tclass="0x030200"/>
      </gpu>
    </pci>
  </cpu>
</system>
)";
  const Topology topology = read_nccl_xml(text, "t.xml");
  EXPECT_THAT(topology.description().assumptions, ElementsAre(HasSubstr("line 5: nvlink to")));
  EXPECT_EQ(meaning(write_nccl_xml(topology, 0).text), meaning(text));
}

TEST(NcclXml, LeavesOutUnknownElementsWithANote) {
  const Topology topology =
      read_nccl_xml("<system version=\"1\"><cpu numaid=\"0\"><rope/></cpu></system>", "t.xml");
  EXPECT_THAT(topology.description().assumptions,
              ElementsAre("line 1: <rope> in <cpu> is not known and left out"));
}

TEST(NcclForm, AcceptsFilesThatNcclAccepts) {
  check_nccl_form("<a b=\"c\">\n  <d/>\n</a>\n", "x");
  check_nccl_form("<!-- note -->\n<a/>", "x");
  for (const std::string& file : dumps()) {
    check_nccl_form(testing::file_text("nccl/" + file), file);
  }
}

TEST(NcclForm, RefusesFilesThatNcclRefuses) {
  std::string wide = "<a>";
  for (int i = 0; i < 32; ++i) wide += "<b/>";
  std::string many = "<a>";
  for (int i = 0; i < 20; ++i) {
    many += "<b>";
    for (int k = 0; k < 20; ++k) many += "<c/>";
    many += "</b>";
  }
  std::string long_value = "<a b=\"" + std::string(255, 'x') + "\"/>";
  std::string attributes = "<a";
  for (int i = 0; i < 17; ++i) attributes += fmt::format(" b{}=\"\"", i);
  for (const std::string& text :
       {std::string("<?xml version=\"1.0\"?><a/>"), std::string("<a>\t<b/></a>"),
        std::string("<a>text</a>"), std::string("<a b=\"&amp;\"/>"), std::string("<a\n b=\"c\"/>"),
        std::string("<a  b=\"c\"/>"), std::string("<a b=\"c\" />"), std::string("<a b='c'/>"),
        std::string("<a>"), std::string("</a>"), std::string("<a></b>"), std::string("<a/><b/>"),
        std::string("<a b=\"c\" b=\"d\"/>"), std::string(""), std::string("<a"), wide + "</a>",
        many + "</a>", long_value, attributes + "/>"}) {
    EXPECT_THROW(check_nccl_form(text, "x"), Error) << text.substr(0, 60);
  }
}

}  // namespace
}  // namespace ropewalk::topology
