#include "executor/block/channel_cut.h"

#include <gtest/gtest.h>

#include <vector>

#include "schedule/compile.h"

namespace ropewalk::executor {
namespace {

schedule::Schedule weighted(const std::vector<int>& weights, int parts) {
  schedule::Schedule schedule =
      schedule::compile("ring", {Collective::kAllReduce, 2, 0, static_cast<int>(weights.size())});
  schedule.weight = weights;
  schedule.parts = parts;
  return schedule;
}

// What a launch counts as sent is by these numbers.
TEST(ChannelCut, PartsOfAllChannelsAreTheWholeUnit) {
  for (const std::vector<int>& weights :
       {std::vector{1}, std::vector{1, 1, 1}, std::vector{900, 900, 100}, std::vector{1, 5000, 1},
        std::vector{3, 2, 2, 1}}) {
    for (const int parts : {1, 3}) {
      for (const std::size_t count : {1U, 4U, 31U, 1000U, 12345U}) {
        const ChannelCut cut = cut_channels(weighted(weights, parts), count, 4);
        std::size_t all = 0;
        for (std::size_t c = 0; c < weights.size(); ++c) {
          std::size_t of_channel = 0;
          for (int part = 0; part < parts; ++part) {
            const std::size_t elements = cut.elements(static_cast<int>(c), part);
            EXPECT_LE(elements, cut.part_length);
            of_channel += elements;
          }
          EXPECT_LE(of_channel, cut.share);
          all += of_channel;
        }
        EXPECT_EQ(all, count) << ::testing::PrintToString(weights) << " " << parts;
      }
    }
  }
}

TEST(ChannelCut, ChannelsHaveDataByTheirWeights) {
  const std::vector<int> weights = {920, 920, 80, 80};
  const ChannelCut cut = cut_channels(weighted(weights, 1), 200'000, 32);
  ASSERT_EQ(cut.begins.size(), 9U);
  for (std::size_t c = 0; c < weights.size(); ++c) {
    EXPECT_NEAR(static_cast<double>(cut.elements(static_cast<int>(c), 0)), 100.0 * weights[c], 64);
    EXPECT_EQ(cut.begins[2 * c] % 32, 0U);
  }
}

}  // namespace
}  // namespace ropewalk::executor
