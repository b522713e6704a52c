// Orders for made machines whose ranks a launcher dealt out to NUMA nodes in turn, and how often
// the schedules made in them cross from node to node.
#include "tune/numa_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "schedule/check.h"
#include "schedule/compile.h"
#include "tune/ring_search.h"

namespace ropewalk::tune {
namespace {

using schedule::Request;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Made {
  std::vector<int> host;
  std::vector<int> numa;
  std::vector<int> core;

  [[nodiscard]] int size() const { return static_cast<int>(host.size()); }
  [[nodiscard]] RankSeats seats() const { return {host, numa, core}; }
  [[nodiscard]] std::pair<int, int> node(int rank) const {
    return {host[static_cast<std::size_t>(rank)], numa[static_cast<std::size_t>(rank)]};
  }
};

// Rank r is on host r % hosts, and there on the nodes in turn, each time on the next of a node's
// eight cores.
Made dealt_out(int ranks, int nodes, int hosts = 1) {
  Made made;
  for (int r = 0; r < ranks; ++r) {
    const int seat = r / hosts;
    made.host.push_back(r % hosts);
    made.numa.push_back(seat % nodes);
    made.core.push_back(seat % nodes * 8 + seat / nodes);
  }
  return made;
}

// Links from rank to rank of the checked schedule of one channel, from one node to another.
std::size_t crossings(const Made& made, std::string_view algorithm, Collective collective,
                      const std::vector<int>& order, int root = 0, int channels = 1,
                      int channel = 0) {
  Request request;
  request.collective = collective;
  request.num_ranks = made.size();
  request.root = root;
  request.channels = channels;
  request.order = order;
  const schedule::Schedule compiled = schedule::compile(algorithm, request);
  (void)schedule::check(compiled);
  std::set<std::pair<int, int>> links;
  for (int r = 0; r < made.size(); ++r) {
    for (const schedule::Step& step :
         compiled.programs[static_cast<std::size_t>(r)][static_cast<std::size_t>(channel)]) {
      for (const int peer : step.send) {
        if (made.node(r) != made.node(peer)) links.emplace(r, peer);
      }
    }
  }
  return links.size();
}

TEST(NumaRing, TwoNodesAreCrossedOnceEachWay) {
  const Made made = dealt_out(8, 2);
  const std::vector<int> order = ring_by_numa(made.seats());
  EXPECT_THAT(order, ElementsAre(0, 2, 4, 6, 1, 3, 5, 7));
  EXPECT_EQ(numa_changes(made.seats(), {}), 8);
  EXPECT_EQ(numa_changes(made.seats(), order), 2);
  for (const int channel : {0, 1}) {
    EXPECT_EQ(crossings(made, "ring", Collective::kAllReduce, {}, 0, 2, channel), 8U);
    EXPECT_EQ(crossings(made, "ring", Collective::kAllReduce, order, 0, 2, channel), 2U);
    EXPECT_EQ(crossings(made, "ring", Collective::kAllGather, order, 0, 2, channel), 2U);
  }
}

TEST(NumaRing, FourNodesAreEnteredOnce) {
  const Made made = dealt_out(16, 4);
  const std::vector<int> order = ring_by_numa(made.seats());
  EXPECT_THAT(order, ElementsAre(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  EXPECT_EQ(crossings(made, "ring", Collective::kAllReduce, {}), 16U);
  EXPECT_EQ(crossings(made, "ring", Collective::kAllReduce, order), 4U);
}

// A chain goes around from its root, so it may come back to the rest of the root's node.
TEST(NumaRing, ChainsBeginAtTheirRoot) {
  for (const int nodes : {2, 4}) {
    const Made made = dealt_out(16, nodes);
    const std::vector<int> order = ring_by_numa(made.seats());
    for (int root = 0; root < made.size(); ++root) {
      const std::size_t chain = crossings(made, "chain", Collective::kBroadcast, order, root);
      EXPECT_LE(chain, static_cast<std::size_t>(nodes)) << root;
      EXPECT_GE(chain, static_cast<std::size_t>(nodes - 1)) << root;
      EXPECT_EQ(crossings(made, "chain", Collective::kReduce, order, root), chain);
      EXPECT_EQ(crossings(made, "chain", Collective::kBroadcast, {}, root), 15U);
    }
    EXPECT_EQ(crossings(made, "chain", Collective::kBroadcast, order, 0),
              static_cast<std::size_t>(nodes - 1))
        << "the first rank of a node";
  }
}

TEST(NumaRing, HostsComeFirst) {
  const Made made = dealt_out(16, 2, 2);
  const std::vector<int> order = ring_by_numa(made.seats());
  EXPECT_THAT(order, ElementsAre(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15));
  EXPECT_EQ(host_changes(made.host, order), 2);
  EXPECT_EQ(numa_changes(made.seats(), order), 2) << "one on each host";
}

TEST(NumaRing, CoresOrderTheRanksOfANode) {
  const Made made{{0, 0, 0, 0}, {1, 0, 1, 0}, {9, 3, 8, 2}};
  EXPECT_THAT(ring_by_numa(made.seats()), ElementsAre(3, 1, 2, 0));
}

// Some firmware numbers the cores of two sockets in turn.
TEST(NumaRing, NodesCountBeforeCores) {
  const Made made{{0, 0, 0, 0}, {0, 1, 0, 1}, {0, 1, 2, 3}};
  EXPECT_THAT(ring_by_numa(made.seats()), ElementsAre(0, 2, 1, 3));
}

TEST(NumaRing, NothingChangesWithoutNeed) {
  // One node, in whatever order of cores.
  const Made alone{{0, 0, 0, 0}, {0, 0, 0, 0}, {3, 2, 1, 0}};
  EXPECT_THAT(ring_by_numa(alone.seats()), IsEmpty());
  // In order, also from the second node on, and with cores mixed.
  const Made ordered{{0, 0, 0, 0}, {1, 1, 0, 0}, {9, 8, 1, 0}};
  EXPECT_THAT(ring_by_numa(ordered.seats()), IsEmpty());
  // A ring of two ranks, or of one on each node, crosses the same whatever the order.
  EXPECT_THAT(ring_by_numa(dealt_out(2, 2).seats()), IsEmpty());
  EXPECT_THAT(ring_by_numa(dealt_out(4, 4).seats()), IsEmpty());
  EXPECT_THAT(ring_by_numa(dealt_out(1, 1).seats()), IsEmpty());
}

TEST(NumaRing, AHostWithAnUnboundRankKeepsItsOrder) {
  Made made = dealt_out(8, 2, 1);
  made.numa[3] = -1;
  EXPECT_THAT(ring_by_numa(made.seats()), IsEmpty());
  // The other host's ranks are ordered all the same.
  Made two = dealt_out(16, 2, 2);
  two.numa[0] = -1;
  const std::vector<int> order = ring_by_numa(two.seats());
  EXPECT_THAT(order, ElementsAre(0, 2, 4, 6, 8, 10, 12, 14, 1, 5, 9, 13, 3, 7, 11, 15));
}

// Without nodes it is what ring_avoiding() finds.
TEST(NumaRing, HostsAloneAreOrderedAsBefore) {
  Made made = dealt_out(6, 1, 2);
  made.numa.assign(6, -1);
  EXPECT_THAT(ring_by_numa(made.seats()), ElementsAre(0, 2, 4, 1, 3, 5));
  EXPECT_EQ(ring_by_numa(made.seats()), ring_avoiding({}, 6, made.host));
}

}  // namespace
}  // namespace ropewalk::tune
