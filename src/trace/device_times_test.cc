#include "trace/device_times.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

namespace ropewalk::trace {
namespace {

using executor::LaunchStamps;

// What a block of a launch notes.
void note(const LaunchStamps& stamps, std::uint32_t block, std::uint64_t begin, std::uint64_t end) {
  std::uint64_t* words = stamps.words + std::size_t{2} * block;
  if (begin != 0) words[0] = LaunchStamps::stamp(stamps.launch, begin);
  if (end != 0) words[1] = LaunchStamps::stamp(stamps.launch, end);
}

class Times : public ::testing::Test {
 protected:
  static constexpr std::size_t kBlocks = 32;
  std::vector<std::uint64_t> memory_ = std::vector<std::uint64_t>(2 * kBlocks);
  DeviceTimes times_{std::span(memory_)};
};

TEST_F(Times, AreOfTheFirstAndTheLastBlock) {
  const StampRange range = times_.next(3);
  EXPECT_EQ(times_.read(range).begin, 0U);
  note(times_.stamps(range), 1, 500, 700);
  EXPECT_EQ(times_.read(range).begin, 500U);
  EXPECT_EQ(times_.read(range).end, 0U) << "two blocks have not begun";
  note(times_.stamps(range), 0, 510, 650);
  note(times_.stamps(range), 2, 490, 0);
  EXPECT_EQ(times_.read(range).end, 0U) << "a block is at work";
  note(times_.stamps(range), 2, 0, 620);
  EXPECT_EQ(times_.read(range).begin, 490U);
  EXPECT_EQ(times_.read(range).end, 700U);
}

TEST_F(Times, OfMessagesAreOfTheirBlocks) {
  const StampRange range = times_.next(4);
  for (std::uint32_t b = 0; b < 3; ++b) note(times_.stamps(range), b, 100 + b, 200 + b);
  EXPECT_EQ(times_.read(range.part(0, 1)).end, 200U);
  EXPECT_EQ(times_.read(range.part(1, 2)).begin, 101U);
  EXPECT_EQ(times_.read(range.part(1, 2)).end, 202U);
  EXPECT_EQ(times_.read(range.part(3, 1)).begin, 0U);
}

TEST_F(Times, SurviveBeingPacked) {
  (void)times_.next(7);
  const StampRange range = times_.next(5);
  const StampRange again = StampRange::unpacked(range.packed());
  EXPECT_NE(range.packed(), 0U);
  EXPECT_EQ(again.first, range.first);
  EXPECT_EQ(again.blocks, range.blocks);
  EXPECT_EQ(again.launch, range.launch);
}

TEST_F(Times, OfALaunchWhoseMemoryIsAnothersAreUnknown) {
  const StampRange old = times_.next(8);
  for (std::uint32_t b = 0; b < 8; ++b) note(times_.stamps(old), b, 100, 200);
  bool foretold = false;
  for (int i = 0; i < 4; ++i) {
    if (times_.about_to_be_reused(old)) foretold = true;
    const StampRange next = times_.next(8);
    ASSERT_EQ(next.blocks, 8);
    for (std::uint32_t b = 0; b < 8; ++b) note(times_.stamps(next), b, 300, 400);
  }
  EXPECT_TRUE(foretold);
  EXPECT_EQ(times_.read(old).begin, 0U);
  EXPECT_EQ(times_.read(old).end, 0U);
}

// Blocks of one launch write one piece of memory, wherever it begins.
TEST_F(Times, OfALaunchLieInOnePiece) {
  for (std::uint64_t i = 0; i < 200; ++i) {
    const auto blocks = static_cast<std::uint32_t>(1 + i % 8);
    const StampRange range = times_.next(blocks);
    ASSERT_EQ(range.blocks, blocks);
    const LaunchStamps stamps = times_.stamps(range);
    ASSERT_GE(stamps.words, memory_.data());
    ASSERT_LE(stamps.words + std::size_t{2} * blocks, memory_.data() + memory_.size());
    EXPECT_EQ(times_.read(range).begin, 0U);
    for (std::uint32_t b = 0; b < blocks; ++b) note(stamps, b, 1000 + i, 2000 + i);
    EXPECT_EQ(times_.read(range).end, 2000 + i);
  }
}

TEST_F(Times, LaunchesThatAreTooLargeAreNotNoted) {
  EXPECT_EQ(times_.next(kBlocks).blocks, 0);
  EXPECT_EQ(times_.stamps(times_.next(kBlocks)).words, nullptr);
  EXPECT_EQ(times_.next(0).blocks, 0);
}

// A graph that is replayed has begun its next turn.
TEST_F(Times, OfAReplayThatIsUnderWayHaveNoEnd) {
  const StampRange range = times_.next(1);
  note(times_.stamps(range), 0, 100, 200);
  note(times_.stamps(range), 0, 300, 0);
  EXPECT_EQ(times_.read(range).begin, 300U);
  EXPECT_EQ(times_.read(range).end, 0U);
}

TEST_F(Times, NumbersOfLaunchesAreNeverZero) {
  for (int i = 0; i < (1 << 16) + 5; ++i) ASSERT_NE(times_.next(1).launch, 0);
}

TEST(DeviceClock, IsTheHostsByTwoReadings) {
  // The GPU's clock is ahead, and 50 ppm fast.
  constexpr std::int64_t kHost = 1'700'000'000'000'000'000;
  const auto device_at = [](std::int64_t host) {
    return std::uint64_t{900'000'000'000'000'000} + static_cast<std::uint64_t>(host - kHost) +
           static_cast<std::uint64_t>((host - kHost) / 20'000);
  };
  constexpr std::int64_t kHour = 3'600'000'000'000;
  const DeviceClock clock({device_at(kHost), kHost}, {device_at(kHost + kHour), kHost + kHour}, {},
                          kHost + kHour);
  for (std::int64_t at = kHost; at <= kHost + kHour; at += kHour / 7) {
    const std::uint64_t stamp = device_at(at) & LaunchStamps::kTimeMask;
    EXPECT_NEAR(static_cast<double>(clock.realtime_ns(stamp, at) - at), 0, 2000);
  }
}

// A stamp has 48 bits of the clock, which pass every 78 hours.
TEST(DeviceClock, KnowsTheBitsThatStampsDoNotHave) {
  constexpr std::int64_t kHost = 1'700'000'000'000'000'000;
  constexpr std::uint64_t kDevice = (std::uint64_t{77} << 48U) - 5;
  const DeviceClock clock({kDevice, kHost}, {kDevice, kHost}, {}, kHost);
  for (const std::int64_t since : {std::int64_t{0}, std::int64_t{4}, std::int64_t{6},
                                   std::int64_t{1} << 47, std::int64_t{1} << 50}) {
    const std::uint64_t stamp =
        (kDevice + static_cast<std::uint64_t>(since)) & LaunchStamps::kTimeMask;
    EXPECT_EQ(clock.realtime_ns(stamp, kHost + since), kHost + since);
    EXPECT_EQ(clock.realtime_ns(stamp, kHost + since - 1'000'000'000), kHost + since);
  }
}

// The clocks have drifted since they were read: no operation starts before its launch, or ends
// after its end was seen.
TEST(DeviceClock, IsCorrectedByWhatIsCertain) {
  constexpr std::int64_t kHost = 1'700'000'000'000'000'000;
  constexpr std::uint64_t kDevice = 5'000'000'000'000;
  const DeviceClock::Reading reading{kDevice, kHost};
  const std::int64_t at = kHost + 1'000'000'000;
  const auto stamp = [&](std::int64_t error) {
    return kDevice + 1'000'000'000 + static_cast<std::uint64_t>(error);
  };
  const std::vector<ClockedTimes> slow = {{at, {stamp(-40'000), stamp(-30'000)}},
                                          {at, {stamp(-50'000), stamp(-30'000)}}};
  const DeviceClock forward(reading, reading, slow, at + 1'000'000);
  EXPECT_EQ(forward.realtime_ns(stamp(-50'000), at), at);
  EXPECT_EQ(forward.realtime_ns(stamp(-30'000), at), at + 20'000);
  const std::vector<ClockedTimes> fast = {{at - 100'000, {stamp(60'000), stamp(70'000)}}};
  const DeviceClock back(reading, reading, fast, at);
  EXPECT_EQ(back.realtime_ns(stamp(70'000), at), at);
  const std::vector<ClockedTimes> fine = {{at, {stamp(5'000), stamp(9'000)}}};
  const DeviceClock same(reading, reading, fine, at + 20'000);
  EXPECT_EQ(same.realtime_ns(stamp(5'000), at), at + 5'000);
}

}  // namespace
}  // namespace ropewalk::trace
