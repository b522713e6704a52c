#include "link/rails.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <vector>

namespace ropewalk::link {
namespace {

using Nics = std::vector<Nic>;
using Pairs = std::vector<std::pair<int, int>>;

TEST(Rails, NicsOfOneFabricArePaired) {
  EXPECT_EQ(pair_nics(Nics{{1, 1e9}, {2, 1e9}}, Nics{{2, 1e9}, {1, 1e9}}), (Pairs{{0, 1}, {1, 0}}));
}

TEST(Rails, TheFastestPairComesFirst) {
  EXPECT_EQ(pair_nics(Nics{{1, 1e9}, {2, 5e9}}, Nics{{1, 9e9}, {2, 4e9}}), (Pairs{{1, 1}, {0, 0}}));
}

TEST(Rails, OnePairTakesEachNicOnce) {
  EXPECT_EQ(pair_nics(Nics{{1, 1e9}, {1, 1e9}, {1, 1e9}}, Nics{{1, 1e9}, {1, 1e9}}),
            (Pairs{{0, 0}, {1, 1}}));
}

TEST(Rails, WithoutACommonFabricAllMayBeRouted) {
  EXPECT_EQ(pair_nics(Nics{{1, 1e9}, {2, 1e9}}, Nics{{3, 1e9}, {4, 1e9}}), (Pairs{{0, 0}, {1, 1}}));
  EXPECT_EQ(pair_nics(Nics{{0, 1e9}, {0, 3e9}}, Nics{{0, 3e9}, {0, 1e9}}), (Pairs{{1, 0}, {0, 1}}));
}

// As docker0 of two hosts: each reaches nobody but its own containers.
TEST(Rails, NicsOfOneAddressAreNoPairIfThereAreOthers) {
  const Nics host = {{1, 1e9, 11}, {2, 1e9, 7}};
  EXPECT_EQ(pair_nics(host, Nics{{1, 1e9, 12}, {2, 1e9, 7}}), (Pairs{{0, 0}}));
  EXPECT_EQ(pair_nics(Nics{{2, 1e9, 7}}, Nics{{2, 1e9, 7}}), (Pairs{{0, 0}}));
}

TEST(Rails, BothEndsFindTheSamePairs) {
  const Nics first = {{1, 1e9}, {2, 2e9}, {3, 3e9}};
  const Nics second = {{3, 2e9}, {1, 2e9}, {2, 1e9}};
  const Rails rails({first, second}, std::array{0, 1}, 8);
  ASSERT_EQ(rails.count(), 3);
  for (int rail = 0; rail < rails.count(); ++rail) {
    const Nic a = first[static_cast<std::size_t>(rails.device(0, 1, rail))];
    const Nic b = second[static_cast<std::size_t>(rails.device(1, 0, rail))];
    EXPECT_EQ(a.fabric, b.fabric);
  }
}

TEST(Rails, AsManyAsTheHostsWithTheFewestHave) {
  const Nics two = {{1, 1e9}, {2, 1e9}};
  const Nics one = {{1, 1e9}};
  EXPECT_EQ(Rails({two, two, one}, std::array{0, 1, 2}, 8).count(), 1);
  EXPECT_EQ(Rails({two, two}, std::array{0, 1}, 8).count(), 2);
  EXPECT_EQ(Rails({two, two}, std::array{0, 1}, 1).count(), 1);
}

TEST(Rails, NicsOfOneHostNeedNoPairs) {
  const Nics eth0 = {{1, 1e9}};
  const Nics both = {{1, 1e9}, {2, 1e9}};
  // Ranks 0 and 1 share a host; only rank 2 is reached over the network.
  EXPECT_EQ(Rails({both, both, both}, std::array{0, 0, 1}, 8).count(), 2);
  EXPECT_EQ(Rails({eth0, both, both}, std::array{0, 0, 1}, 8).count(), 1);
}

TEST(Rails, OneRailWhereNothingIsKnown) {
  const Rails rails;
  EXPECT_EQ(rails.count(), 1);
  EXPECT_EQ(rails.device(3, 5, 0), 0);
}

TEST(Rails, ReorderedOnesKeepTheirDevices) {
  const Nics nics = {{1, 1e9}, {2, 1e9}, {3, 1e9}};
  const Rails rails({nics, nics}, std::array{0, 1}, 8);
  const Rails fewer = rails.reordered(std::array{2, 0});
  ASSERT_EQ(fewer.count(), 2);
  EXPECT_EQ(fewer.device(0, 1, 0), 2);
  EXPECT_EQ(fewer.device(1, 0, 0), 2);
  EXPECT_EQ(fewer.device(0, 1, 1), 0);
  EXPECT_EQ(fewer.reordered(std::array{1}).device(0, 1, 0), 0);
}

// Two hosts of two ranks and two NICs, each rank near one NIC.
Rails near_rails(std::vector<int> alike) {
  const Nics nics = {{1, 1e9}, {2, 1e9}};
  const std::vector<NicPosition> near_first = {{10, 0}, {11, 1}};
  const std::vector<NicPosition> near_second = {{10, 1}, {11, 0}};
  const Rails rails({nics, nics, nics, nics}, std::array{0, 0, 1, 1}, 8,
                    {near_first, near_second, near_first, near_second});
  return rails.reordered(std::array{0, 1}, alike);
}

TEST(Rails, OfRailsWithEqualRatesTheNearestComesFirst) {
  const Rails rails = near_rails({2});
  EXPECT_EQ(rails.pair(0, 2, 0), (Rails::Pair{0, 0}));
  EXPECT_EQ(rails.pair(1, 3, 0), (Rails::Pair{1, 1}));
  EXPECT_EQ(rails.pair(3, 1, 0), (Rails::Pair{1, 1}));
  EXPECT_EQ(rails.pair(1, 3, 1), (Rails::Pair{0, 0}));
}

// What a rank's cores are near to may be far from its GPU.
TEST(Rails, PlacedAnewTheNearestComesFirstToo) {
  const std::vector<Nic> nics(2, Nic{});
  const std::vector<NicPosition> near_first = {{-1, 0}, {-1, 9}};
  const std::vector<NicPosition> near_second = {{-1, 9}, {-1, 0}};
  const Rails rails = Rails({nics, nics}, std::array{0, 1}, 8, {near_first, near_first})
                          .reordered(std::array{0, 1}, std::array{2});
  EXPECT_EQ(rails.device(0, 1, 0), 0);
  const Rails placed = rails.placed({near_second, near_second});
  EXPECT_EQ(placed.device(0, 1, 0), 1);
  EXPECT_EQ(placed.device(1, 0, 1), 0);
  EXPECT_EQ(placed.distance(0, 1, 1), 18);
}

TEST(Rails, HowFarThePairOfARailIs) {
  const Rails rails = near_rails({2});
  EXPECT_EQ(rails.distance(0, 2, 0), 0);
  EXPECT_EQ(rails.distance(0, 2, 1), 2);
  EXPECT_EQ(rails.distance(3, 0, 0), 1);  // near one of the two ranks
  EXPECT_EQ(Rails().distance(0, 1, 0), 0);
}

// Two fast NICs and two slow ones: a rank has the nearest of each kind first.
TEST(Rails, AmongSlowerOnesOfEqualRatesTheNearestComesFirst) {
  const Nics nics = {{1, 2e9}, {2, 2e9}, {3, 1e9}, {4, 1e9}};
  const std::vector<NicPosition> near_even = {{-1, 0}, {-1, 1}, {-1, 0}, {-1, 1}};
  const std::vector<NicPosition> near_odd = {{-1, 1}, {-1, 0}, {-1, 1}, {-1, 0}};
  const Rails rails({nics, nics, nics, nics}, std::array{0, 0, 1, 1}, 8,
                    {near_even, near_odd, near_even, near_odd});
  const Rails found = rails.reordered(std::array{0, 1, 2, 3}, std::array{2, 2});
  for (const int rail : {0, 2}) {
    EXPECT_EQ(found.device(0, 2, rail), rail);
    EXPECT_EQ(found.device(1, 3, rail), rail + 1);
  }
}

TEST(Rails, AFasterOneComesBeforeANearerOne) {
  EXPECT_EQ(near_rails({}).pair(1, 3, 0), (Rails::Pair{0, 0}));
}

TEST(Rails, ARouteNamesThem) {
  const Rails rails = near_rails({2});
  EXPECT_EQ(rails.through(0, 3, 11, 11, 0), (Rails::Pair{1, 1}));
  // Not of one fabric: the sender's rail, as both ends see it.
  EXPECT_EQ(rails.through(0, 3, 11, 10, 0), (Rails::Pair{1, 1}));
  EXPECT_EQ(rails.through(3, 0, 10, 11, 0), (Rails::Pair{1, 1}));
  EXPECT_EQ(rails.through(0, 3, 12, -1, 0), std::nullopt);
  // One that was left out.
  EXPECT_EQ(rails.reordered(std::array{0}).through(0, 3, 11, 11, 0), std::nullopt);
}

TEST(Rails, OfOneFabricARouteNamesAnyTwo) {
  const Nics nics = {{1, 1e9}, {1, 1e9}};
  const std::vector<NicPosition> positions = {{10, 0}, {11, 0}};
  const Rails rails({nics, nics}, std::array{0, 1}, 8, {positions, positions});
  EXPECT_EQ(rails.through(0, 1, 11, 10, 0), (Rails::Pair{1, 0}));
  EXPECT_EQ(rails.through(1, 0, 10, 11, 0), (Rails::Pair{0, 1}));
}

}  // namespace
}  // namespace ropewalk::link
