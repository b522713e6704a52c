#include "core/interrupt.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <thread>

#include "core/error.h"
#include "core/mutex.h"

namespace ropewalk {
namespace {

class InterruptTest : public ::testing::Test {
 protected:
  ~InterruptTest() override { set_interrupt_check(nullptr, nullptr); }
  // Counts its calls in the int behind `user`; wants an end from the third on.
  static int at_the_third(void* user) { return ++*static_cast<int*>(user) >= 3 ? 1 : 0; }
  int calls_ = 0;
};

TEST_F(InterruptTest, NoCheckIsCalledAtFirst) { EXPECT_FALSE(interrupted()); }

TEST_F(InterruptTest, TheCheckDecides) {
  set_interrupt_check(at_the_third, &calls_);
  EXPECT_FALSE(interrupted());
  EXPECT_NO_THROW(check_interrupt("a wait"));
  try {
    check_interrupt("a wait");
    FAIL() << "not interrupted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInterrupted);
    EXPECT_STREQ(error.what(), "a wait: interrupted by the program");
  }
  set_interrupt_check(nullptr, nullptr);
  EXPECT_FALSE(interrupted());
  EXPECT_EQ(calls_, 3);
}

TEST_F(InterruptTest, OtherThreadsAreNotChecked) {
  set_interrupt_check(at_the_third, &calls_);
  std::thread([] { EXPECT_FALSE(interrupted()); }).join();
  EXPECT_EQ(calls_, 0);
}

TEST_F(InterruptTest, WithinACheckNothingIsCheckedOrSet) {
  static bool inside = false;
  static bool again = true;
  EXPECT_FALSE(in_interrupt_check());
  set_interrupt_check(
      [](void*) {
        inside = in_interrupt_check();
        again = interrupted();
        EXPECT_THROW(set_interrupt_check(nullptr, nullptr), Error);
        std::thread([] { EXPECT_FALSE(in_interrupt_check()); }).join();
        return 1;
      },
      nullptr);
  EXPECT_TRUE(interrupted());
  EXPECT_TRUE(inside);
  EXPECT_FALSE(again);
  EXPECT_FALSE(in_interrupt_check());
}

TEST_F(InterruptTest, AThreadThatWorksForAnotherEndsWithIt) {
  std::atomic<bool> stop = false;
  {
    const InterruptedBy caller(stop);
    EXPECT_FALSE(interrupted());
    stop = true;
    EXPECT_TRUE(interrupted());
  }
  EXPECT_FALSE(interrupted());
}

class LockTest : public ::testing::Test {
 protected:
  using Clock = std::chrono::steady_clock;
  Mutex mutex_;
  std::condition_variable changed_;
};

TEST_F(LockTest, WaitsCallBetweenWithoutTheMutex) {
  int calls = 0;
  bool done = false;
  const auto between = [&] {
    const Lock lock(mutex_);  // hangs, or is an error, if it is held
    if (++calls == 3) done = true;
  };
  Lock lock(mutex_);
  EXPECT_TRUE(lock.wait_until(
      changed_, Clock::time_point::max(), [&] { return done; }, std::chrono::milliseconds(2),
      between));
  EXPECT_EQ(calls, 3);
}

TEST_F(LockTest, WaitsEndAtTheirDeadline) {
  int calls = 0;
  Lock lock(mutex_);
  const auto begin = Clock::now();
  EXPECT_FALSE(lock.wait_until(
      changed_, begin + std::chrono::milliseconds(30), [] { return false; },
      std::chrono::milliseconds(20), [&] { ++calls; }));
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(30));
  EXPECT_GE(calls, 1);
  calls = 0;
  EXPECT_FALSE(lock.wait_until(
      changed_, begin, [] { return false; }, std::chrono::milliseconds(20), [&] { ++calls; }));
  EXPECT_EQ(calls, 0);
}

TEST_F(LockTest, AnExceptionOfBetweenEndsTheWaitWithoutTheMutex) {
  const auto wait = [&] {
    Lock lock(mutex_);
    lock.wait_until(
        changed_, Clock::time_point::max(), [] { return false; }, std::chrono::milliseconds(1),
        [] { throw Error(Errc::kInterrupted, "enough"); });
  };
  EXPECT_THROW(wait(), Error);
  std::thread([&] { const Lock lock(mutex_); }).join();
}

}  // namespace
}  // namespace ropewalk
