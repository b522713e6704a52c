#include "topology/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/testing/in_child.h"
#include "topology/testing/recorded.h"

namespace ropewalk::topology {
namespace {

using ropewalk::testing::complaint;

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// GPUs a, b, c in a row, joined in both directions, and a switch w on the side of c.
Description row() {
  Description description;
  description.name = "row";
  description.planes = {{"nvlink", {LinkType::kNvlink}}, {"pcie", {LinkType::kPcie}}};
  description.nodes = {{.id = "a", .rank = 0},
                       {.id = "w", .kind = NodeKind::kPcieSwitch},
                       {.id = "b", .rank = 1},
                       {.id = "c", .rank = 2}};
  const auto join = [&](NodeIndex from, NodeIndex to, LinkType type) {
    description.links.push_back({.source = from, .destination = to, .type = type, .capacity = 10});
    description.links.push_back({.source = to, .destination = from, .type = type, .capacity = 10});
  };
  join(0, 2, LinkType::kNvlink);
  join(2, 3, LinkType::kNvlink);
  join(3, 1, LinkType::kPcie);
  return description;
}

TEST(Topology, FindsNodesAndLinks) {
  const Topology topology(row());
  EXPECT_EQ(topology.at("b"), 2U);
  EXPECT_EQ(topology.find("x"), std::nullopt);
  EXPECT_THAT(complaint([&] { (void)topology.at("x"); }), HasSubstr("no node \"x\""));
  EXPECT_THAT(topology.gpus(), ElementsAre(0, 2, 3));
  EXPECT_THAT(topology.links_from(2), ElementsAre(1, 2));
  EXPECT_THAT(topology.links_to(2), ElementsAre(0, 3));
  EXPECT_EQ(topology.find_link(3, 1, LinkType::kPcie), 4U);
  EXPECT_EQ(topology.find_link(3, 1, LinkType::kNvlink), std::nullopt);
  EXPECT_TRUE(topology.symmetric());
}

TEST(Topology, APlaneKeepsItsLinksAndAllNodes) {
  const Topology plane = Topology(row()).plane("pcie");
  EXPECT_EQ(plane.nodes().size(), 4U);
  EXPECT_EQ(plane.links().size(), 2U);
  EXPECT_THAT(plane.unreachable_gpus(), ElementsAre("b", "c"));
  EXPECT_THAT(complaint([&] { require_connected(plane); }),
              HasSubstr("row: no path between a and b, c"));
  EXPECT_THAT(complaint([&] { (void)Topology(row()).plane("net"); }),
              HasSubstr("row has no plane \"net\"; it has nvlink, pcie"));
}

TEST(Topology, GpusCanBeChosenAndRenumbered) {
  const Topology two = Topology(row()).with_gpus({2, 1});
  EXPECT_EQ(two.node(two.gpus()[0]).id, "c");
  EXPECT_EQ(two.node(two.gpus()[1]).id, "b");
  EXPECT_EQ(two.nodes().size(), 3U);
  EXPECT_EQ(two.links().size(), 4U);
  require_connected(two);
  // The middle one is removed, so nothing joins the ends.
  EXPECT_THAT(complaint([] {
                require_connected(Topology(row()).with_gpus({0, 2}));
              }),
              HasSubstr("no path between a and c"));
  EXPECT_THAT(complaint([] {
                (void)Topology(row()).with_gpus({0, 3});
              }),
              HasSubstr("GPU 3 is asked for; row has 3 GPUs"));
  EXPECT_THAT(complaint([] { (void)Topology(row()).with_gpus({0, 0}); }), HasSubstr("twice"));
  EXPECT_THAT(complaint([] { (void)Topology(row()).with_gpus({-1}); }), HasSubstr("GPU -1"));
  EXPECT_THAT(complaint([] { (void)Topology(row()).with_gpus({}); }), HasSubstr("no GPU"));
}

TEST(Topology, DeadEndsCanBeLeftOut) {
  const Topology core = Topology(row()).without_dead_ends();
  EXPECT_EQ(core.nodes().size(), 3U);
  EXPECT_EQ(core.links().size(), 4U);
  // A DGX-1's NICs lead nowhere without a network; all else is needed.
  const Topology dgx = testing::machine("dgx1v");
  EXPECT_EQ(dgx.without_dead_ends().nodes().size(),
            dgx.nodes().size() - dgx.nodes_of(NodeKind::kNic).size());
}

TEST(Topology, FewGpusAreNoErrorUntilACollectiveIsWanted) {
  Description none = row();
  none.nodes.clear();
  none.links.clear();
  EXPECT_THAT(complaint([&] { require_connected(Topology(none)); }), HasSubstr("row has no GPU"));
  EXPECT_THAT(complaint([] { require_connected(Topology(row()).with_gpus({1})); }),
              HasSubstr("row has one GPU"));
}

TEST(Topology, AOneWayLinkDoesNotConnect) {
  Description description = row();
  description.links.erase(description.links.begin() + 1);  // b -> a
  const Topology topology(description);
  EXPECT_FALSE(topology.symmetric());
  EXPECT_THAT(topology.unreachable_gpus(), ElementsAre("b", "c"));
}

TEST(Topology, LatenciesAreGivenOrThoseOfTheLinkType) {
  const auto of = [](LinkType type) { return latency_us(Link{.type = type}); };
  const LinkType inside[] = {LinkType::kNvlink, LinkType::kXgmi, LinkType::kC2c,
                             LinkType::kPcie,   LinkType::kSmp,  LinkType::kNtb};
  for (const LinkType type : inside) {
    EXPECT_GT(of(type), 0.1);
    EXPECT_LT(of(type), 1);
  }
  EXPECT_LT(of(LinkType::kSmp), of(LinkType::kPcie)) << "no device is on the path";
  EXPECT_GT(of(LinkType::kNet), 2 * of(LinkType::kNtb)) << "two adapters and a switch";
  EXPECT_GT(of(LinkType::kEthernet), 2 * of(LinkType::kNet)) << "through the kernel";
  EXPECT_EQ(latency_us(Link{.type = LinkType::kNet, .latency_us = 9}), 9);
}

TEST(Topology, RefusesInvalidMachines) {
  const auto with_capacity = [](double capacity) {
    return complaint([&] {
      Description description = row();
      description.links[1].capacity = capacity;
      (void)Topology(description);
    });
  };
  EXPECT_EQ(with_capacity(5), "");
  EXPECT_THAT(with_capacity(0), HasSubstr("links[1].capacity: 0 is not between"));
  EXPECT_THAT(with_capacity(-3), HasSubstr("links[1].capacity: -3"));
  EXPECT_THAT(with_capacity(std::nan("")), HasSubstr("links[1].capacity: must be finite"));
  EXPECT_THAT(with_capacity(std::numeric_limits<double>::infinity()), HasSubstr("finite"));

  const auto with_id = [](const std::string& id) {
    return complaint([&] {
      Description description = row();
      description.nodes[1].id = id;
      (void)Topology(description);
    });
  };
  EXPECT_THAT(with_id("a"), HasSubstr("nodes[1].id: \"a\" is also the id of nodes[0]"));
  EXPECT_THAT(with_id("a b"), HasSubstr("nodes[1].id: must be"));
  EXPECT_THAT(with_id(std::string(kMaxIdBytes + 1, 'x')), HasSubstr("nodes[1].id: must be"));
  EXPECT_EQ(with_id(std::string(kMaxIdBytes, 'x')), "");
}

}  // namespace
}  // namespace ropewalk::topology
