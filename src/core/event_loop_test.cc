#include "core/event_loop.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <future>
#include <memory>
#include <string>
#include <vector>

namespace ropewalk {
namespace {

constexpr std::chrono::seconds kLoopPatience{20};

/// Keeps a loop's thread running.
struct Kept {
  std::promise<void> destroyed;
  ~Kept() { destroyed.set_value(); }
};

TEST(EventLoops, TasksTimersAndDeferredTasksHaveTheirOrder) {
  EventLoop loop("test");
  std::promise<std::string> done;
  std::string order;
  loop.post([&] {
    loop.keep(std::make_shared<int>(0));
    const auto now = EventLoop::Clock::now();
    loop.at(now, [&] {
      order += "2";
      loop.defer([&] { done.set_value(order); });
    });
    const auto cancelled = loop.at(now, [&] { order += "x"; });
    loop.at(now - std::chrono::seconds(1), [&] { order += "1"; });
    loop.cancel(cancelled);
    loop.defer([&] { order += "0"; });
  });
  auto result = done.get_future();
  ASSERT_EQ(result.wait_for(kLoopPatience), std::future_status::ready);
  EXPECT_EQ(result.get(), "012");
}

TEST(EventLoops, HandlersAreCalledUntilForgotten) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  EventLoop loop("test");
  std::promise<void> forgotten;
  std::promise<int> calls;
  int called = 0;
  std::uint64_t key = 0;
  loop.post([&] {
    loop.keep(std::make_shared<int>(0));
    key = loop.add(ends[0], EPOLLIN, [&](std::uint32_t events) {
      EXPECT_NE(events & EPOLLIN, 0U);
      ++called;  // what can be read stays there: without forget() it would be called again
      loop.forget(key, ends[0]);
      forgotten.set_value();
    });
  });
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  ASSERT_EQ(forgotten.get_future().wait_for(kLoopPatience), std::future_status::ready);
  loop.post([&] { loop.after(std::chrono::milliseconds(20), [&] { calls.set_value(called); }); });
  EXPECT_EQ(calls.get_future().get(), 1);
  for (const int fd : ends) close(fd);
}

TEST(EventLoops, AFailingTaskDoesNotStopTheOthers) {
  EventLoop loop("test");
  std::promise<void> second;
  loop.post([] { throw std::runtime_error("expected by this test"); });
  loop.post([&] { second.set_value(); });
  EXPECT_EQ(second.get_future().wait_for(kLoopPatience), std::future_status::ready);
}

TEST(EventLoops, StopDestroysKeptObjects) {
  auto kept = std::make_shared<Kept>();
  auto destroyed = kept->destroyed.get_future();
  EventLoop loop("test");
  loop.post([&loop, kept]() mutable { loop.keep(std::move(kept)); });
  kept.reset();
  loop.stop();
  EXPECT_EQ(destroyed.wait_for(std::chrono::seconds(0)), std::future_status::ready);
}

TEST(EventLoops, TheThreadEndsWithTheLastDropAndStartsAgain) {
  EventLoop loop("test");
  for (int turn = 0; turn < 3; ++turn) {
    auto kept = std::make_shared<Kept>();
    auto destroyed = kept->destroyed.get_future();
    loop.post([&loop, kept]() mutable {
      const void* key = kept.get();
      loop.keep(std::move(kept));
      loop.post([&loop, key] { loop.drop(key); });
    });
    kept.reset();
    EXPECT_EQ(destroyed.wait_for(kLoopPatience), std::future_status::ready) << turn;
  }
}

}  // namespace
}  // namespace ropewalk
