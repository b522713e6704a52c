// Operations over both classes of links, timed by the stamps of their blocks.
#include "comm/hybrid_timer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "executor/block/launch.h"

namespace ropewalk::comm {
namespace {

using executor::LaunchStamps;

constexpr std::uint32_t kBlocks = 8;
constexpr std::uint32_t kHostBlocks = 2;

class HybridTimerTest : public ::testing::Test {
 protected:
  // A launch that is followed.
  trace::StampRange follow(double share = 0.1) {
    const trace::StampRange range = times_.next(kBlocks);
    tune::HybridTimes known;
    known.share = share;
    EXPECT_TRUE(timer_.poll());
    timer_.follow(range, kHostBlocks, known);
    return range;
  }
  // In ns of the device's clock.
  void stamp(const trace::StampRange& range, std::uint32_t block, std::uint64_t begin,
             std::uint64_t end) {
    std::uint64_t* const words = times_.stamps(range).words + std::size_t{2} * block;
    words[0] = LaunchStamps::stamp(range.launch, begin);
    words[1] = LaunchStamps::stamp(range.launch, end);
  }
  void stamp_all(const trace::StampRange& range, std::uint64_t direct_end, std::uint64_t host_end) {
    for (std::uint32_t b = 0; b < kBlocks; ++b) {
      const std::uint64_t end = b < kBlocks - kHostBlocks ? direct_end : host_end;
      stamp(range, b, std::min(direct_end, host_end) - 1000, end - b % 2);
    }
  }

  std::vector<std::uint64_t> memory_ = std::vector<std::uint64_t>(128);
  trace::DeviceTimes times_{std::span(memory_)};
  std::vector<tune::HybridTimes> timed_;
  HybridTimer timer_{times_, [this](const tune::HybridTimes& times) { timed_.push_back(times); }};
};

TEST_F(HybridTimerTest, TellsByHowMuchTheHostsLinksWereLater) {
  const trace::StampRange late = follow(0.25);
  stamp_all(late, 50'000, 57'000);
  EXPECT_TRUE(timer_.poll());
  const trace::StampRange early = follow(0.5);
  stamp_all(early, 90'000, 85'000);
  EXPECT_TRUE(timer_.poll());
  EXPECT_TRUE(timer_.poll());
  ASSERT_EQ(timed_.size(), 2U);
  EXPECT_DOUBLE_EQ(timed_[0].share, 0.25);
  EXPECT_NEAR(timed_[0].host_later_seconds, 7e-6, 1e-12);
  EXPECT_NEAR(timed_[0].seconds, 8e-6, 1e-12);
  EXPECT_DOUBLE_EQ(timed_[1].share, 0.5);
  EXPECT_NEAR(timed_[1].host_later_seconds, -5e-6, 1e-12);
  EXPECT_NEAR(timed_[1].seconds, 6e-6, 1e-12);
}

TEST_F(HybridTimerTest, WaitsForTheLastBlockOfEitherClass) {
  for (const std::uint32_t last : {0U, kBlocks - 1}) {
    const std::size_t before = timed_.size();
    const trace::StampRange range = follow();
    for (std::uint32_t b = 0; b < kBlocks; ++b) {
      if (b != last) stamp(range, b, 1'000, 2'000);
    }
    EXPECT_TRUE(timer_.poll());
    EXPECT_EQ(timed_.size(), before);
    stamp(range, last, 1'000, 3'000);
    EXPECT_TRUE(timer_.poll());
    ASSERT_EQ(timed_.size(), before + 1);
    EXPECT_NEAR(timed_.back().host_later_seconds, last == 0 ? -1e-6 : 1e-6, 1e-12);
  }
}

// The clock's upper bits are not in stamps.
TEST_F(HybridTimerTest, AClockThatBeginsAnewBetweenTheEndsSaysTheSame) {
  const trace::StampRange range = follow();
  constexpr std::uint64_t kWrap = LaunchStamps::kTimeMask + 1;
  for (std::uint32_t b = 0; b < kBlocks; ++b) {
    stamp(range, b, kWrap - 5'000, kWrap - 1'000);
  }
  // The host's channels in one block each, with begin and end behind the wrap.
  for (std::uint32_t b = kBlocks - kHostBlocks; b < kBlocks; ++b) {
    stamp(range, b, kWrap + 100, kWrap + 3'000);
  }
  EXPECT_TRUE(timer_.poll());
  ASSERT_EQ(timed_.size(), 1U);
  EXPECT_NEAR(timed_[0].host_later_seconds, 4e-6, 1e-12);
}

TEST_F(HybridTimerTest, AnOperationWhoseMemoryIsAnothersIsForgotten) {
  const trace::StampRange forgotten = follow(0.25);
  EXPECT_TRUE(timer_.poll());
  for (int i = 0; i < 5; ++i) (void)times_.next(kBlocks);
  const trace::StampRange next = follow(0.5);
  stamp_all(next, 2'000, 3'000);
  EXPECT_TRUE(timer_.poll());
  ASSERT_EQ(timed_.size(), 1U);
  EXPECT_DOUBLE_EQ(timed_[0].share, 0.5);
  stamp_all(forgotten, 2'000, 3'000);
  EXPECT_TRUE(timer_.poll());
  EXPECT_EQ(timed_.size(), 1U);
}

// A program enqueues many before the first one ends.
TEST_F(HybridTimerTest, FollowsSomeAtOnceInTheirOrder) {
  std::vector<trace::StampRange> ranges;
  for (std::size_t i = 0; i < HybridTimer::kMostFollowed; ++i) {
    ranges.push_back(follow(0.1 * static_cast<double>(i + 1)));
  }
  EXPECT_FALSE(timer_.poll());
  // A later one is not told before those that were begun earlier.
  stamp_all(ranges[1], 4'000, 5'000);
  EXPECT_FALSE(timer_.poll());
  EXPECT_TRUE(timed_.empty());
  stamp_all(ranges[0], 2'000, 3'000);
  EXPECT_TRUE(timer_.poll());
  ASSERT_EQ(timed_.size(), 2U);
  EXPECT_DOUBLE_EQ(timed_[0].share, 0.1);
  EXPECT_DOUBLE_EQ(timed_[1].share, 0.2);
}

}  // namespace
}  // namespace ropewalk::comm
