#include "link/rails.h"

#include <gtest/gtest.h>

#include <array>
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

}  // namespace
}  // namespace ropewalk::link
