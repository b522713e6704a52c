#include "executor/host/lending.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "core/testing/share.h"

namespace ropewalk::executor {
namespace {

// Both ends of a link of which only the first lines are used.
struct Ends {
  alignas(kLineBytes) std::array<std::byte, 2 * kLineBytes> memory{};
  SendEnd send;
  ReceiveEnd receive;
  Ends() { send.memory = receive.memory = memory.data(); }
};

TEST(Lending, NothingIsReadAfterItWasTakenBack) {
  Ends ends;
  EXPECT_TRUE(borrow(ends.receive));
  give_back(ends.receive);
  EXPECT_TRUE(borrow(ends.receive));
  give_back(ends.receive);
  take_back(ends.send);
  EXPECT_FALSE(borrow(ends.receive));
  give_back(ends.receive);
  take_back(ends.send);  // again
}

TEST(Lending, TheWriterWaitsForTheReader) {
  Ends ends;
  ASSERT_TRUE(borrow(ends.receive));
  std::atomic<bool> is_back{false};
  std::thread writer([&] {
    take_back(ends.send);
    is_back = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(is_back);
  give_back(ends.receive);
  writer.join();
  EXPECT_TRUE(is_back);
}

// The address sanitizer and the thread sanitizer detect a read of freed memory.
TEST(Lending, BuffersMayGoOnceTheyAreBack) {
  for (int turn = 0; turn < 300 / std::min(10, ropewalk::testing::share()); ++turn) {
    Ends ends;
    auto buffer = std::make_unique<std::vector<int>>(1000, turn);
    const std::vector<int>* const seen = buffer.get();
    std::atomic<bool> begun{false};
    std::thread reader([&] {
      while (borrow(ends.receive)) {
        for (const int value : *seen) ASSERT_EQ(value, turn);
        give_back(ends.receive);
        begun = true;
      }
      give_back(ends.receive);
    });
    while (!begun) std::this_thread::yield();
    for (int wait = 0; wait < turn % 7; ++wait) std::this_thread::yield();
    take_back(ends.send);
    buffer.reset();
    reader.join();
  }
}

}  // namespace
}  // namespace ropewalk::executor
