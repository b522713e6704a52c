#include "topology/synthetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "core/error.h"
#include "core/testing/in_child.h"
#include "topology/testing/recorded.h"

namespace ropewalk::topology {
namespace {

using ropewalk::testing::complaint;

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Kinds and capacities of all links; between GPUs their ranks too.
std::multiset<std::string> shape(const Topology& topology) {
  std::multiset<std::string> found;
  for (const Link& link : topology.links()) {
    const auto end = [&](NodeIndex index) {
      const Node& node = topology.node(index);
      return fmt::format("{}{}", name(node.kind), node.rank >= 0 ? node.rank : 0);
    };
    found.insert(fmt::format("{} {} {} {} lanes {} gen {} width {}", end(link.source),
                             end(link.destination), name(link.type), link.capacity,
                             link.lanes.value_or(0), link.gen.value_or(0), link.width.value_or(0)));
  }
  for (const Node& node : topology.nodes()) {
    found.insert(fmt::format("{} of host {} numa {} rate {}", name(node.kind), node.host,
                             node.kind == NodeKind::kNvSwitch ? 0 : node.numa.value_or(0),
                             node.net_gbps.value_or(0)));
  }
  return found;
}

std::string synthetic_complaint(const std::string& text) {
  return complaint([&] { (void)synthetic(text); });
}

TEST(Synthetic, TwoHostsOfTheReadme) {
  const Topology topology = synthetic("2x(8gpu nvswitch) 8nic");
  EXPECT_EQ(topology.hosts(), 2);
  EXPECT_EQ(topology.gpus().size(), 16U);
  EXPECT_EQ(topology.nodes_of(NodeKind::kNvSwitch).size(), 2U);
  EXPECT_EQ(topology.nodes_of(NodeKind::kNic).size(), 16U);
  EXPECT_EQ(topology.nodes_of(NodeKind::kNetwork).size(), 1U);
  EXPECT_EQ(topology.node(topology.gpus()[9]).id, "h1.gpu1");
  EXPECT_THAT(topology.unreachable_gpus(), ElementsAre());
  EXPECT_TRUE(topology.symmetric());
  EXPECT_EQ(shape(topology), shape(synthetic("2x(8gpu nvswitch 8nic)")));
}

TEST(Synthetic, PresetsAreTheRecordedMachines) {
  for (const Preset& preset : presets()) {
    SCOPED_TRACE(preset.name);
    EXPECT_EQ(shape(synthetic(preset.name)), shape(testing::machine(std::string(preset.name))));
  }
  EXPECT_EQ(shape(synthetic("2x(dgx-a100)")), shape(testing::machine("dgx-a100-x2")));
  EXPECT_EQ(shape(synthetic("2x(dgx-h100)")), shape(testing::machine("dgx-h100-x2")));
  EXPECT_EQ(shape(synthetic("4gpu:H200 nvswitch")), shape(testing::machine("h200-4gpu")));
}

TEST(Synthetic, FabricsAndRates) {
  const auto rate = [](const char* text, const char* from, const char* to, LinkType type) {
    const Topology topology = synthetic(text);
    const auto link = topology.find_link(topology.at(from), topology.at(to), type);
    return link ? topology.link(*link).capacity : 0;
  };
  EXPECT_DOUBLE_EQ(rate("2gpu:H100 nvswitch", "gpu0", "nvs0", LinkType::kNvlink), 450);
  EXPECT_DOUBLE_EQ(rate("2gpu nvswitch@100", "gpu0", "nvs0", LinkType::kNvlink), 100);
  EXPECT_DOUBLE_EQ(rate("2gpu 4nvswitch@100", "nvs3", "gpu1", LinkType::kNvlink), 25);
  EXPECT_DOUBLE_EQ(rate("4gpu:A100 nvmesh", "gpu0", "gpu3", LinkType::kNvlink), 100);
  EXPECT_DOUBLE_EQ(rate("4gpu nvmesh@7.5", "gpu2", "gpu1", LinkType::kNvlink), 7.5);
  EXPECT_DOUBLE_EQ(rate("4gpu nvring@7", "gpu3", "gpu0", LinkType::kNvlink), 7);
  EXPECT_DOUBLE_EQ(rate("4gpu nvring@7", "gpu2", "gpu0", LinkType::kNvlink), 0);
  EXPECT_DOUBLE_EQ(rate("2gpu nvring@7", "gpu0", "gpu1", LinkType::kNvlink), 7);
  EXPECT_DOUBLE_EQ(rate("2gpu gen3", "gpu0", "cpu0", LinkType::kPcie), 12);
  EXPECT_DOUBLE_EQ(rate("2cpu@40 4gpu", "cpu0", "cpu1", LinkType::kSmp), 40);
  EXPECT_DOUBLE_EQ(rate("2x(gpu nic@200Gb)", "h0.nic0", "net0", LinkType::kNet), 25);
  EXPECT_DOUBLE_EQ(rate("2x(2gpu 2nic@10GB) rails", "h1.nic1", "net1", LinkType::kNet), 10);
  EXPECT_DOUBLE_EQ(rate("2x(2gpu 2nic@10GB) rails", "h1.nic1", "net1", LinkType::kNet), 10);
  EXPECT_DOUBLE_EQ(rate("gpu nic net", "nic0", "net0", LinkType::kNet), 50);
}

TEST(Synthetic, NamesTheColumnOfAnError) {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {"", "column 1: no part"},
      {"8 gpu", "column 2: expected a word"},
      {"8gpu rope", "column 6: unknown word \"rope\"; known are gpu"},
      {"0gpu", "column 1: a count is between"},
      {"99999999999gpu", "column 1: a count is between"},
      {"8gpu 8gpu", "column 6: gpu twice"},
      {"8gpu nvswitch nvmesh", "column 15: a second GPU fabric"},
      {"nvswitch 2cpu", "column 1: nvswitch needs GPUs"},
      {"4gpu nvcube", "column 6: nvcube needs 8 GPUs"},
      {"gpu nvring", "column 5: nvring needs 2 GPUs"},
      {"2x(8gpu nvswitch)", "column 1: several hosts need NICs"},
      {"2x(8gpu", "column 8: ( is not closed"},
      {"(8gpu)", "column 1: the number of hosts is missing"},
      {"2(8gpu)", "column 2: expected x and ("},
      {"8gpu nic@", "column 10: expected a rate"},
      {"8gpu nic@1e9", "column 11: expected a space between parts"},
      {"8gpu nic@0", "column 10: a rate is between"},
      {"8gpu nic@...", "column 10: expected a rate"},
      {"8gpu: nic", "column 6: expected a model"},
      {"8gpu@4", "column 1: gpu takes no rate"},
      {"8gpu 2cpu:x", "column 6: cpu takes no model"},
      {"2dgx1v", "column 1: dgx1v takes no count"},
      {"8gpu gen7", "column 6: unknown word \"gen7\""},
      {"60000gpu nvmesh", "column 1: 60001 nodes and"},
      {"60000cpu", "column 1: 60000 nodes and"},
      {"8gpu)", "column 5: expected a space"},
      {"8gpu,nic", "column 5: expected a space"},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.text);
    EXPECT_THAT(synthetic_complaint(each.text), HasSubstr(each.message));
  }
  EXPECT_THAT(synthetic_complaint("65536x(8gpu nic)"), HasSubstr("nodes is the limit"));
  EXPECT_THAT(synthetic_complaint(std::string(5000, ' ')), HasSubstr("4096 is the limit"));
}

}  // namespace
}  // namespace ropewalk::topology
