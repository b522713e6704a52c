// When a waiting thread reports that nothing moves.
#include "executor/host/waiter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace ropewalk::executor {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

class Hook final : public WaitHook {
 public:
  bool poll() override {
    ++polls;
    return false;
  }
  void stalled(std::chrono::nanoseconds since_progress) override { told.push_back(since_progress); }
  std::vector<std::chrono::nanoseconds> told;
  std::size_t polls = 0;
};

void idle_until_told(Waiter& waiter, const Hook& hook, std::size_t times, std::uint64_t moves = 0) {
  while (hook.told.size() < times) waiter.idle(moves);
}

TEST(Waiter, AsksItsHookToSleep) {
  class Sleeper final : public WaitHook {
   public:
    bool poll() override { return ++polls == 1'000; }
    void stalled(std::chrono::nanoseconds /*since_progress*/) override {}
    bool sleep(std::chrono::nanoseconds at_most) override {
      EXPECT_EQ(at_most, milliseconds(2));
      ++sleeps;
      return true;
    }
    int polls = 0;
    int sleeps = 0;
  } hook;
  Waiter::Policy policy;
  policy.spin = {};
  policy.bare_turns = 10;
  policy.sleep = milliseconds(2);
  policy.hook_sleeps = {};
  Waiter waiter(policy, hook);
  while (hook.polls < 1'000) waiter.idle(0);
  EXPECT_EQ(hook.sleeps, 1'000 - 10 - 1);
}

// There a different call of a peer, an abort and a deadline are noticed. The soonest of many waits:
// this thread may have to wait for its core.
TEST(Waiter, ReportsAStallSoonAfterItsBegin) {
  std::chrono::nanoseconds soonest = std::chrono::hours(1);
  for (int turn = 0; turn < 20 && soonest > milliseconds(20); ++turn) {
    Hook hook;
    Waiter waiter({}, hook);
    const Clock::time_point begin = Clock::now();
    idle_until_told(waiter, hook, 1);
    soonest = std::min<std::chrono::nanoseconds>(soonest, Clock::now() - begin);
  }
  EXPECT_LE(soonest, milliseconds(20));
}

TEST(Waiter, GoesOnTellingAndNotAtEachTurn) {
  std::chrono::nanoseconds soonest = std::chrono::hours(1);
  for (int turn = 0; turn < 5 && soonest > milliseconds(100); ++turn) {
    Hook hook;
    Waiter waiter({}, hook);
    const Clock::time_point begin = Clock::now();
    idle_until_told(waiter, hook, 5);
    soonest = std::min<std::chrono::nanoseconds>(soonest, Clock::now() - begin);
    EXPECT_GT(hook.polls, hook.told.size());
    EXPECT_GE(hook.told[0], milliseconds(1));
    for (std::size_t i = 1; i < hook.told.size(); ++i) {
      EXPECT_GE(hook.told[i] - hook.told[i - 1], milliseconds(1));
    }
  }
  EXPECT_LE(soonest, milliseconds(100));
}

// After progress, or in a new wait, the count starts again.
TEST(Waiter, ReportsTheTimeSinceTheLastProgress) {
  for (const bool restarts : {false, true}) {
    Hook hook;
    Waiter waiter({}, hook);
    idle_until_told(waiter, hook, 5, 7);
    EXPECT_GE(hook.told.back(), milliseconds(5));
    hook.told.clear();
    const Clock::time_point moved = Clock::now();
    if (restarts) waiter.restart();
    idle_until_told(waiter, hook, 1, restarts ? 7 : 8);
    EXPECT_GE(hook.told.back(), milliseconds(1));
    EXPECT_LE(hook.told.back(), Clock::now() - moved);
  }
}

}  // namespace
}  // namespace ropewalk::executor
