#include "core/pacer.h"

#include <gtest/gtest.h>

#include <thread>

namespace ropewalk {
namespace {

using std::chrono::milliseconds;

unsigned times_due(Pacer& pacer, unsigned polls) {
  unsigned times = 0;
  for (unsigned i = 0; i < polls; ++i) times += pacer.due() ? 1 : 0;
  return times;
}

TEST(Pacer, FastPollersLookOnceAPeriod) {
  Pacer pacer{std::chrono::hours(1)};
  pacer.restart();
  EXPECT_EQ(times_due(pacer, 100'000), 0U);
  Pacer never_looked{milliseconds(1)};
  EXPECT_EQ(times_due(never_looked, Pacer::kPollsPerClock), 1U);
}

TEST(Pacer, SlowPollersAreDueAfterFewPolls) {
  Pacer pacer{milliseconds(1)};
  pacer.restart();
  unsigned polls = 0;
  do {
    std::this_thread::sleep_for(milliseconds(1));
    ++polls;
  } while (!pacer.due());
  EXPECT_EQ(polls, Pacer::kPollsPerClock);
}

TEST(Pacer, HoldsOffWhileThingsMove) {
  Pacer pacer{milliseconds(0)};
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(times_due(pacer, Pacer::kPollsPerClock - 1), 0U);
    pacer.hold_off();
  }
  EXPECT_EQ(times_due(pacer, Pacer::kPollsPerClock), 1U);
}

TEST(Pacer, ReturnsTheLastReading) {
  Pacer pacer{milliseconds(0)};
  pacer.restart();
  const Pacer::Clock::time_point begin = pacer.last();
  EXPECT_LE(begin, Pacer::Clock::now());
  EXPECT_EQ(times_due(pacer, Pacer::kPollsPerClock), 1U);
  EXPECT_GE(pacer.last(), begin);
  EXPECT_LE(pacer.last(), Pacer::Clock::now());
}

}  // namespace
}  // namespace ropewalk
