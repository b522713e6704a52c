#include "tune/ring_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace ropewalk::tune {
namespace {

using ::testing::IsEmpty;
using Pairs = std::vector<std::pair<int, int>>;

TEST(RingSearch, FindsTheRingBesideDiagonals) {
  const Pairs slow = {{0, 3}, {1, 2}};
  EXPECT_EQ(slow_neighbours(slow, 4, {}), 2);
  const std::vector<int> order = ring_avoiding(slow, 4, {});
  EXPECT_EQ(slow_neighbours(slow, 4, order), 0);
}

TEST(RingSearch, LeavesAnOrderThatIsGood) {
  EXPECT_THAT(ring_avoiding(Pairs{{0, 2}, {1, 3}}, 4, {}), IsEmpty());
  EXPECT_THAT(ring_avoiding(Pairs{}, 4, {}), IsEmpty());
  // No order is better where all pairs are slow.
  EXPECT_THAT(ring_avoiding(Pairs{{0, 1}, {0, 2}, {1, 2}}, 3, {}), IsEmpty());
  EXPECT_EQ(slow_neighbours(Pairs{{0, 1}}, 2, {}), 1);
}

// The NVLink of a DGX-1: 16 of 28 pairs, and a ring over them.
TEST(RingSearch, FindsTheRingOfADgx1) {
  const Pairs linked = {{0, 3}, {0, 4}, {1, 2}, {1, 5}, {2, 3}, {4, 7}, {5, 6}, {6, 7},
                        {0, 1}, {0, 2}, {1, 3}, {2, 6}, {3, 7}, {4, 5}, {4, 6}, {5, 7}};
  Pairs slow;
  for (int a = 0; a < 8; ++a) {
    for (int b = a + 1; b < 8; ++b) {
      if (std::ranges::find(linked, std::pair(a, b)) == linked.end()) slow.emplace_back(a, b);
    }
  }
  ASSERT_EQ(slow.size(), 12U);
  const std::vector<int> order = ring_avoiding(slow, 8, {});
  EXPECT_EQ(slow_neighbours(slow, 8, order), 0);
}

TEST(RingSearch, PassesAsFewAsPossibleWhereItMust) {
  // Rank 3 reaches rank 0 alone: no ring without one slow pair, and two by number.
  const Pairs slow = {{1, 3}, {2, 3}, {0, 1}};
  EXPECT_EQ(slow_neighbours(slow, 4, ring_avoiding(slow, 4, {})), 1);
}

TEST(RingSearch, KeepsRanksOfAHostTogether) {
  const std::vector<int> hosts = {0, 1, 0, 1, 0, 1};
  const Pairs slow = {{0, 2}, {3, 5}};
  const std::vector<int> order = ring_avoiding(slow, 6, hosts);
  // By number no two of a host are neighbours, so that there is nothing to gain.
  EXPECT_THAT(order, IsEmpty());
  const std::vector<int> in_turn = {0, 0, 0, 1, 1, 1};
  const std::vector<int> found = ring_avoiding(Pairs{{0, 1}, {3, 4}}, 6, in_turn);
  ASSERT_EQ(found.size(), 6U);
  EXPECT_TRUE(std::all_of(found.begin(), found.begin() + 3, [](int rank) { return rank < 3; }));
  EXPECT_EQ(slow_neighbours(Pairs{{0, 1}, {3, 4}}, 6, found), 0);
}

TEST(RingSearch, EndsForManyRanksWithoutARing) {
  Pairs slow;  // two halves that no link joins
  for (int a = 0; a < 12; ++a) {
    for (int b = 12; b < 24; ++b) slow.emplace_back(a, b);
  }
  for (int a = 0; a < 24; a += 2) slow.emplace_back(a, a + 1);
  const std::vector<int> order = ring_avoiding(slow, 24, {});
  EXPECT_LE(slow_neighbours(slow, 24, order), slow_neighbours(slow, 24, {}));
}

}  // namespace
}  // namespace ropewalk::tune
