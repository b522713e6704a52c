#include "tune/rail_weights.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

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

TEST(RailWeights, RateOfTheRailsInUse) {
  const std::array rates = {100e6, 100e6, 50e6, 25e6};
  EXPECT_DOUBLE_EQ(rate_of_channels(rates, 1), 100e6);
  EXPECT_DOUBLE_EQ(rate_of_channels(rates, 4), 275e6);
  EXPECT_DOUBLE_EQ(rate_of_channels(rates, 9), 275e6);
  EXPECT_DOUBLE_EQ(rate_of_channels({}, 2), 0);
}

}  // namespace
}  // namespace ropewalk::tune
