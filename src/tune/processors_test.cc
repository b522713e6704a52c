#include "tune/processors.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <initializer_list>
#include <vector>

namespace ropewalk::tune {
namespace {

Processors set(std::initializer_list<unsigned> numbers) {
  Processors made;
  for (const unsigned number : numbers) made.bits[number / 64] |= std::uint64_t{1} << number % 64;
  return made;
}

double shared(const std::vector<Processors>& each) { return ranks_per_processor(each); }

TEST(Processors, RanksThatMayRunAnywhereShareAllOfThem) {
  EXPECT_EQ(shared({4, set({0, 1})}), 2);
  EXPECT_EQ(shared({2, set({0, 1})}), 1);
  EXPECT_EQ(shared({2, set({0, 1, 2, 500})}), 0.5);
}

// As mpirun and srun bind them.
TEST(Processors, RanksThatAreBoundToProcessorsOfTheirOwnShareNone) {
  EXPECT_EQ(shared({set({0}), set({1})}), 1);
  EXPECT_EQ(shared({set({63}), set({64}), set({1023})}), 1);
  EXPECT_EQ(shared({set({0, 1}), set({0, 1}), set({2, 3}), set({2, 3})}), 1);
}

TEST(Processors, TheMostCrowdedProcessorsCount) {
  EXPECT_EQ(shared({set({0}), set({0}), set({1}), set({2}), set({3})}), 2);
  EXPECT_EQ(shared({set({0}), set({0, 1}), set({0, 1})}), 1.5);
  EXPECT_EQ(shared({set({5}), set({5}), set({5}), set({0, 1, 2, 3, 4, 5})}), 3);
}

TEST(Processors, OfThisThread) {
  const Processors before = Processors::usable();
  EXPECT_GE(before.count(), 1);
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  int first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(Processors::usable(), set({static_cast<unsigned>(first)}));
  {
    const OnAllProcessors free;
    EXPECT_TRUE(before.within(Processors::usable()));
  }
  EXPECT_EQ(Processors::usable(), set({static_cast<unsigned>(first)}));
  ASSERT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
  EXPECT_EQ(Processors::usable(), before);
  EXPECT_TRUE(set({static_cast<unsigned>(first)}).within(before));
}

TEST(Processors, OfTheKernelsLists) {
  EXPECT_EQ(Processors::of_list("0-3,8"), set({0, 1, 2, 3, 8}));
  EXPECT_EQ(Processors::of_list("1023"), set({1023}));
  EXPECT_EQ(Processors::of_list("62-65,1022-5000"), set({62, 63, 64, 65, 1022, 1023}));
  for (const char* none : {"", "x", "3-1", "1;2", "-", "1-", "0-3x", "99999999999999999999999"}) {
    EXPECT_EQ(Processors::of_list(none), Processors()) << none;
  }
}

TEST(Processors, TheIntersectionOfTwo) {
  EXPECT_EQ(set({0, 1, 64, 1023}).in_common(set({1, 64, 65})), 2);
  EXPECT_EQ(set({0}).in_common({}), 0);
  EXPECT_EQ(set({70, 1023}).first(), 70);
  EXPECT_EQ(Processors().first(), -1);
}

TEST(Processors, TheMachineHasAName) { EXPECT_FALSE(machine_identity().empty()); }

}  // namespace
}  // namespace ropewalk::tune
