// Helpers that run parts of a group.
#include "comm/enqueue_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace ropewalk::comm {
namespace {

using std::chrono::steady_clock;

// Calls that follow each other closely until a helper has run a part, or ten seconds are over.
bool helped(EnqueueThreads& threads, std::size_t parts) {
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> by_another = false;
  const auto until = steady_clock::now() + std::chrono::seconds(10);
  while (!by_another && steady_clock::now() < until) {
    threads.run(parts, [&](std::size_t) {
      if (std::this_thread::get_id() == caller) {
        // As long as a launch: another thread begins meanwhile, where it has a processor.
        const auto launched = steady_clock::now() + std::chrono::microseconds(3);
        while (steady_clock::now() < launched) std::this_thread::yield();
      } else {
        by_another = true;
      }
    });
  }
  return by_another;
}

TEST(EnqueueThreads, EachPartRunsOnce) {
  EnqueueThreads threads;
  for (int call = 0; call < 20'000; ++call) {
    const std::size_t parts = static_cast<std::size_t>(call) % 5;
    std::vector<std::atomic<int>> ran(parts);
    threads.run(parts, [&](std::size_t part) { ++ran[part]; });
    for (const std::atomic<int>& times : ran) ASSERT_EQ(times, 1) << call;
  }
}

TEST(EnqueueThreads, CallsOneByOneAreMadeByTheirThread) {
  EnqueueThreads threads;
  const std::thread::id caller = std::this_thread::get_id();
  for (int call = 0; call < 100; ++call) {
    std::vector<std::thread::id> by(3);
    threads.run(3, [&](std::size_t part) { by[part] = std::this_thread::get_id(); });
    for (const std::thread::id& thread : by) ASSERT_EQ(thread, caller);
    std::this_thread::sleep_for(2 * EnqueueThreads::kClosely);
  }
}

TEST(EnqueueThreads, HelpersWakeForCallsInARow) {
  EnqueueThreads threads;
  EXPECT_TRUE(helped(threads, 2));
  // Asleep again, and woken again.
  std::this_thread::sleep_for(100 * EnqueueThreads::kAwake);
  EXPECT_TRUE(helped(threads, 3));
}

TEST(EnqueueThreads, TheLowestPartsErrorIsThrownAfterAllHaveEnded) {
  EnqueueThreads threads;
  for (int call = 0; call < 5'000; ++call) {
    std::atomic<int> ended = 0;
    try {
      threads.run(4, [&](std::size_t part) {
        ++ended;
        if (part >= 2) throw std::runtime_error(std::to_string(part));
      });
      FAIL();
    } catch (const std::runtime_error& error) {
      ASSERT_STREQ(error.what(), "2");
    }
    ASSERT_EQ(ended, 4);
  }
  int ran = 0;
  threads.run(1, [&](std::size_t) { ++ran; });
  EXPECT_EQ(ran, 1);
}

}  // namespace
}  // namespace ropewalk::comm
