#include "transport/window/sisci/crossover.h"

#include <gtest/gtest.h>

#include <vector>

namespace ropewalk::transport::window::sisci {
namespace {

// Times of a machine where stores and DMA each have a latency and a rate.
std::vector<TimedCopies> timed(double stores_start, double stores_per_kib, double transfer_start,
                               double transfer_per_kib) {
  std::vector<TimedCopies> all;
  for (const std::size_t bytes : kTimedSizes) {
    const double kib = static_cast<double>(bytes) / 1024;
    all.push_back(
        {bytes, stores_start + kib * stores_per_kib, transfer_start + kib * transfer_per_kib});
  }
  return all;
}

TEST(Crossover, IsTheUsualWhereNothingWasMeasured) { EXPECT_EQ(crossover({}), kUsualCrossover); }

TEST(Crossover, IsTheFirstSizeThatIsFasterByTransfer) {
  // They meet at 10 KiB.
  EXPECT_EQ(crossover(timed(0, 0.5, 3, 0.2)), 16U << 10);
  EXPECT_EQ(crossover(timed(1, 0.5, 0.5, 0.2)), 4U << 10);
  EXPECT_EQ(crossover(timed(0, 0.5, 19.2, 0.2)), 64U << 10);
}

TEST(Crossover, MayLieBeyondTheMeasuredSizes) {
  const std::size_t found = crossover(timed(0, 0.5, 30, 0.2));
  EXPECT_NEAR(static_cast<double>(found), 100 * 1024, 2);
}

TEST(Crossover, EndsWhereTheCpuHasBetterToDo) {
  EXPECT_EQ(crossover(timed(0, 0.1, 1000, 0.09)), kMostStored);
  // Transfers that never catch up.
  EXPECT_EQ(crossover(timed(0, 0.1, 3, 0.1)), kMostStored);
  EXPECT_EQ(crossover(timed(0, 0.1, 3, 0.2)), kMostStored);
}

// One size that the system disturbed decides nothing by itself, but the smaller ones.
TEST(Crossover, TransfersAreUsedFromWhereOnTheyAreFasterAtAllSizes) {
  std::vector<TimedCopies> all = timed(0, 0.5, 1, 0.2);
  EXPECT_EQ(crossover(all), 4U << 10);
  all[2].transfer_us = 1000;
  EXPECT_EQ(crossover(all), 32U << 10);
}

TEST(Crossover, OfOneSize) {
  const std::vector<TimedCopies> slow = {{4096, 1, 2}};
  EXPECT_EQ(crossover(slow), 8192U);
  const std::vector<TimedCopies> fast = {{4096, 2, 1}};
  EXPECT_EQ(crossover(fast), 4096U);
}

}  // namespace
}  // namespace ropewalk::transport::window::sisci
