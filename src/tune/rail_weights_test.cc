#include "tune/rail_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "schedule/check.h"
#include "schedule/compile.h"
#include "schedule/limits.h"

namespace ropewalk::tune {
namespace {

using Weights = std::vector<int>;

TEST(RailWeights, EqualWithoutRates) {
  EXPECT_EQ(channel_weights({}, 3), (Weights{1, 1, 1}));
  EXPECT_EQ(channel_weights(std::array{5e9}, 2), (Weights{1, 1}));
}

TEST(RailWeights, AreTheRates) {
  EXPECT_EQ(channel_weights(std::array{100e6, 100e6, 50e6, 25e6}, 4), (Weights{4, 4, 2, 1}));
}

TEST(RailWeights, RatesThatDifferLittleAreEqual) {
  EXPECT_EQ(channel_weights(std::array{100e6, 95e6, 88e6}, 3), (Weights{1, 1, 1}));
  EXPECT_EQ(channel_weights(std::array{100e6, 80e6}, 2), (Weights{16, 13}));
}

TEST(RailWeights, ChannelsOfARailShareIt) {
  EXPECT_EQ(channel_weights(std::array{100e6, 100e6}, 4), (Weights{1, 1, 1, 1}));
  // Two channels on the first rail, one on the second.
  EXPECT_EQ(channel_weights(std::array{100e6, 100e6}, 3), (Weights{1, 2, 1}));
}

TEST(RailWeights, FewerChannelsTakeTheFastestRails) {
  EXPECT_EQ(channel_weights(std::array{100e6, 50e6, 10e6}, 2), (Weights{2, 1}));
}

TEST(RailWeights, NoneIsZero) {
  EXPECT_EQ(channel_weights(std::array{100e6, 1e3}, 2), (Weights{16, 1}));
}

TEST(RailWeights, ASpreadScheduleHasEachChannelOnEachRail) {
  schedule::Schedule schedule = schedule::compile("ring", {Collective::kAllReduce, 3, 0, 2});
  schedule.weight = {3, schedule::kMaxWeight};
  const std::array rates = {100e6, 50e6};
  const schedule::Schedule spread = spread_over_rails(schedule, rates);
  ASSERT_EQ(spread.num_channels(), 4);
  EXPECT_TRUE(schedule::check(spread).accepted);
  EXPECT_LE(*std::ranges::max_element(spread.weight), schedule::kMaxWeight);
  EXPECT_NEAR(static_cast<double>(spread.weight[2]) / spread.weight[3], 2, 1e-3);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    for (std::size_t channel = 0; channel < 4; ++channel) {
      EXPECT_EQ(spread.programs[rank][channel], schedule.programs[rank][channel / 2]);
    }
  }
  EXPECT_EQ(spread_over_rails(schedule, std::span(rates).first(1)), schedule);
}

}  // namespace
}  // namespace ropewalk::tune
