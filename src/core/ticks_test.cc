#include "core/ticks.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace ropewalk {
namespace {

using std::chrono_literals::operator""ms;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

TEST(Ticks, NeverGoBack) {
  std::uint64_t last = ticks();
  for (int i = 0; i < 10'000; ++i) {
    const std::uint64_t now = ticks();
    ASSERT_GE(now, last);
    last = now;
  }
}

// A reading between two readings of the wall clock lies between them, with an uncertainty of some
// microseconds from the scale.
TEST(Ticks, AreConvertedToTheWallClock) {
  constexpr std::int64_t kDoubtNs = 50'000;
  TickScale scale;
  struct Seen {
    std::int64_t before;
    std::uint64_t at;
    std::int64_t after;
  };
  Seen seen[5];
  for (Seen& each : seen) {
    each.before = now_ns();
    each.at = ticks();
    each.after = now_ns();
    std::this_thread::sleep_for(5ms);
  }
  scale.update();
  for (const Seen& each : seen) {
    EXPECT_GE(scale.realtime_ns(each.at), each.before - kDoubtNs);
    EXPECT_LE(scale.realtime_ns(each.at), each.after + kDoubtNs);
  }
}

TEST(Ticks, AScaleThatIsYoungWaitsUntilItKnowsTheRate) {
  TickScale scale;
  const std::int64_t before = now_ns();
  const std::uint64_t at = ticks();
  scale.update();
  EXPECT_GE(now_ns() - before, 9'000'000);
  EXPECT_NEAR(static_cast<double>(scale.realtime_ns(at)), static_cast<double>(before), 100'000);
}

}  // namespace
}  // namespace ropewalk
