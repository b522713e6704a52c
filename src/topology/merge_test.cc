// Hosts merged into one machine.
#include "topology/merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/testing/in_child.h"
#include "topology/json.h"
#include "topology/replicate.h"
#include "topology/synthetic.h"
#include "topology/testing/recorded.h"

namespace ropewalk::topology {
namespace {

using ropewalk::testing::complaint;

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::machine;
using ::testing::Not;

std::string merge_complaint(const std::vector<Topology>& hosts) {
  return complaint([&] { (void)merge(hosts, Fabric::kOne); });
}

std::vector<std::string> plane_names(const Topology& made) {
  std::vector<std::string> names;
  for (const Plane& plane : made.planes()) names.push_back(plane.name);
  return names;
}

// Kept files of pairs, whose nodes and links are not made by this function.
TEST(Merge, TheSameHostTwiceIsTheKeptPair) {
  for (const char* name : {"dgx-a100", "dgx-h100"}) {
    const Topology kept = machine(std::string(name) + "-x2");
    const Topology made = merge(std::vector(2, machine(name)), Fabric::kOne);
    EXPECT_EQ(made.hosts(), 2);
    EXPECT_EQ(made.gpus().size(), kept.gpus().size()) << name;
    EXPECT_EQ(made.nodes_of(NodeKind::kNic).size(), kept.nodes_of(NodeKind::kNic).size()) << name;
    const auto rates = [](const Topology& of) {
      std::vector<std::pair<int, double>> found;
      for (const Link& link : of.links()) {
        found.emplace_back(static_cast<int>(link.type), link.capacity);
      }
      std::ranges::sort(found);
      return found;
    };
    EXPECT_EQ(rates(made), rates(kept)) << name;
  }
}

TEST(Merge, CopiesEqualReplicates) {
  for (const Fabric fabric : {Fabric::kOne, Fabric::kRails}) {
    for (const int hosts : {1, 2, 5}) {
      const Topology one = machine("dgx-a100");
      EXPECT_EQ(merge(std::vector(static_cast<std::size_t>(hosts), one), fabric),
                replicate(one, hosts, fabric));
    }
  }
}

TEST(Merge, HostsMayDiffer) {
  const Topology large = synthetic("8gpu:H100 nvswitch 4nic@50");
  const Topology small = synthetic("2gpu:A100 nvring 1nic@25");
  const Topology made = merge(std::vector{large, small, large}, Fabric::kOne);
  EXPECT_EQ(made.hosts(), 3);
  ASSERT_EQ(made.gpus().size(), 18U);
  EXPECT_EQ(made.node(made.gpus()[7]).id, "h0." + large.node(large.gpus()[7]).id);
  EXPECT_EQ(made.node(made.gpus()[8]).id, "h1." + small.node(small.gpus()[0]).id);
  EXPECT_EQ(made.node(made.gpus()[8]).host, 1);
  EXPECT_EQ(made.node(made.gpus()[10]).host, 2);
  EXPECT_TRUE(made.unreachable_gpus().empty());
  ASSERT_EQ(made.nodes_of(NodeKind::kNetwork).size(), 1U);
  std::vector<double> into_network;
  for (const LinkIndex link : made.links_to(made.at("net0"))) {
    into_network.push_back(made.link(link).capacity);
  }
  EXPECT_THAT(into_network, ElementsAre(50, 50, 50, 50, 25, 50, 50, 50, 50));
  EXPECT_EQ(made.links_from(made.at("net0")).size(), 9U);
  // Lanes of another rate: there is no one figure for the machine.
  EXPECT_TRUE(made.symmetric());
  EXPECT_THAT(plane_names(made), Contains("nvlink+net"));
  EXPECT_EQ(made.name(), fmt::format("{}+{}+{}", large.name(), small.name(), large.name()));
  EXPECT_EQ(read_json(write_json(made), "again"), made);
}

// Only the longest host has NICs with the last indices.
TEST(Merge, RailsOfUnequalHosts) {
  const Topology made = merge(
      std::vector{synthetic("4gpu nvring 4nic@50"), synthetic("4gpu 1nic@25")}, Fabric::kRails);
  ASSERT_EQ(made.nodes_of(NodeKind::kNetwork).size(), 4U);
  EXPECT_EQ(made.links_to(made.at("net0")).size(), 2U);
  EXPECT_EQ(made.links_to(made.at("net3")).size(), 1U);
}

TEST(Merge, OrderIsThatOfTheHosts) {
  const Topology a = synthetic("4gpu 1nic");
  const Topology b = synthetic("2gpu 1nic");
  const Topology ab = merge(std::vector{a, b}, Fabric::kOne);
  EXPECT_EQ(merge(std::vector{a, b}, Fabric::kOne), ab);
  EXPECT_NE(merge(std::vector{b, a}, Fabric::kOne), ab);
}

TEST(Merge, ManyNamesAreCounted) {
  std::vector<Topology> hosts(5, synthetic("2gpu 1nic"));
  hosts[1] = synthetic("4gpu 1nic");
  EXPECT_THAT(merge(hosts, Fabric::kOne).name(), ::testing::EndsWith("+2"));
}

TEST(Merge, UnknownFactsAboutNicsAreNoted) {
  Description untold = synthetic("2gpu 1nic").description();
  for (Node& node : untold.nodes) node.net_gbps.reset();
  const Topology made = merge(
      std::vector{Topology(untold), synthetic("2gpu 1nic@50"), synthetic("2gpu")}, Fabric::kOne);
  std::vector<double> rates;
  for (const LinkIndex index : made.links_to(made.at("net0"))) {
    const Link& link = made.link(index);
    rates.push_back(link.capacity);
    EXPECT_EQ(link.assumed.value_or(false), link.capacity == kUntoldLineRate);
  }
  EXPECT_THAT(rates, ElementsAre(kUntoldLineRate, 50));
  const std::vector<std::string>& told = made.description().assumptions;
  EXPECT_THAT(told, Contains(HasSubstr("the line rate of h0.nic0 is not known")));
  EXPECT_THAT(told, Contains("host 2 has no NIC: no network reaches it"));
  EXPECT_EQ(made.unreachable_gpus().size(), 2U);
}

TEST(Merge, WithoutNicsHostsStandApart) {
  const Topology made = merge(std::vector(2, synthetic("2gpu")), Fabric::kOne);
  EXPECT_EQ(made.gpus().size(), 4U);
  EXPECT_TRUE(made.nodes_of(NodeKind::kNetwork).empty());
  EXPECT_THAT(made.description().assumptions, Contains("no host has a NIC: no network joins them"));
}

TEST(Merge, OneHostKeepsItsIds) {
  const Topology one = synthetic("2gpu 1nic");
  const Topology made = merge(std::vector{one}, Fabric::kOne);
  EXPECT_EQ(made.name(), one.name());
  EXPECT_TRUE(made.find(one.node(one.gpus()[1]).id).has_value());
  const Topology alone = merge(std::vector{synthetic("2gpu")}, Fabric::kOne);
  EXPECT_THAT(alone.description().assumptions, Not(Contains(HasSubstr("NIC"))));
}

TEST(Merge, RefusesOtherThanSingleHosts) {
  EXPECT_EQ(merge_complaint({}), "no host to make a machine of");
  EXPECT_THAT(merge_complaint({machine("dgx-a100"), machine("dgx-a100-x2")}),
              HasSubstr("has 2 hosts"));
  EXPECT_THAT(merge_complaint({machine("dgx-a100"), synthetic("2gpu 1nic net")}),
              HasSubstr("has a network already"));
  const Topology large = synthetic("256gpu 8nic");
  EXPECT_THAT(merge_complaint(std::vector(250, large)), HasSubstr("65536 nodes is the limit"));
}

}  // namespace
}  // namespace ropewalk::topology
