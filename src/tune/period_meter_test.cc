#include "tune/period_meter.h"

#include <gtest/gtest.h>

namespace ropewalk::tune {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20U;

TEST(PeriodMeter, TakesSoManyCallsTogether) {
  PeriodMeter meter(4);
  // The calls begin at 0, 1, 4, 5 and 8 seconds: pairs, as a program may make them.
  for (const double start : {0.0, 1.0, 4.0, 5.0}) EXPECT_FALSE(meter.begins(9, start));
  EXPECT_EQ(meter.begins(9, 8.0), 2.0);
  // The next period has begun with that call.
  for (const double start : {9.0, 10.0, 11.0}) EXPECT_FALSE(meter.begins(9, start));
  EXPECT_EQ(meter.begins(9, 12.0), 1.0);
}

TEST(PeriodMeter, CallsWithAnotherChunkBeginANewPeriod) {
  PeriodMeter meter(2);
  EXPECT_FALSE(meter.begins(9, 0));
  EXPECT_FALSE(meter.begins(9, 1));
  EXPECT_FALSE(meter.begins(17, 2));  // the period before was complete, but ends in another's call
  EXPECT_FALSE(meter.begins(17, 5));
  EXPECT_EQ(meter.begins(17, 8), 3.0);
  EXPECT_FALSE(meter.begins(9, 9));
}

TEST(PeriodMeter, APeriodOfOneCall) {
  PeriodMeter meter(1);
  EXPECT_FALSE(meter.begins(9, 1));
  EXPECT_EQ(meter.begins(9, 3), 2.0);
  EXPECT_EQ(meter.begins(9, 4), 1.0);
}

TEST(PeriodMeter, PeriodsCarryMoreThanLinksHold) {
  EXPECT_EQ(PeriodMeter::calls_of(kMiB), 16);
  EXPECT_EQ(PeriodMeter::calls_of(3 * kMiB), 6);
  EXPECT_EQ(PeriodMeter::calls_of(4 * kMiB), 4);
  EXPECT_EQ(PeriodMeter::calls_of(1024 * kMiB), 4);
  EXPECT_EQ(PeriodMeter::calls_of(0), 16 * static_cast<int>(kMiB));
}

}  // namespace
}  // namespace ropewalk::tune
