// How a call is cut into chunks.
#include "comm/prepared.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "schedule/checked.h"
#include "schedule/compile.h"

namespace ropewalk::comm {
namespace {

constexpr std::size_t kChunkBytes = 1024;  // of 256 floats

// Rank 1's part of an all-gather over channels that carry these shares.
PreparedCollective over(std::vector<int> weight) {
  schedule::Schedule made =
      schedule::compile("ring", {Collective::kAllGather, 2, 0, static_cast<int>(weight.size())});
  made.weight = std::move(weight);
  return {std::make_shared<const schedule::Checked>(schedule::Checked::from(std::move(made))), 1};
}

CollectiveCall gather_of(std::size_t count) {
  CollectiveCall call;
  call.collective = Collective::kAllGather;
  call.type = DataType::kFloat32;
  call.count = count;
  return call;
}

tune::Choice staged() {
  tune::Choice choice;
  choice.chunk_bytes = kChunkBytes;
  choice.address_bytes = ~std::size_t{0};
  return choice;
}

const std::vector<executor::Strand>& cut(PreparedCollective& prepared, std::size_t count,
                                         const tune::Choice& choice) {
  prepared.arm(gather_of(count), false, {}, choice, 2, false);
  return prepared.strands();
}

TEST(Prepared, ChannelsOfDifferentWeightsTakeTheSameRounds) {
  PreparedCollective prepared = over({4, 1});
  const std::vector<executor::Strand>& strands = cut(prepared, 5120, staged());
  ASSERT_EQ(strands.size(), 2U);
  EXPECT_EQ(strands[0].length, 4096U);
  EXPECT_EQ(strands[0].chunk_length, 256U);
  EXPECT_EQ(strands[0].rounds, 16U);
  EXPECT_EQ(strands[1].begin, 4096U);
  EXPECT_EQ(strands[1].length, 1024U);
  EXPECT_EQ(strands[1].chunk_length, 64U);
  EXPECT_EQ(strands[1].rounds, 16U);
}

// Steps that lag might wait for each other there. A call of one round has none.
TEST(Prepared, NoSlotHasSeveralReadersWhereStepsLag) {
  const auto checked =
      schedule::CheckedSchedules().get("recursive_doubling", {Collective::kAllGather, 4, 0, 1});
  PreparedCollective lagging(checked, 1, nullptr, 4);
  EXPECT_EQ(cut(lagging, 256, staged())[0].last_lag, 0U);
  EXPECT_EQ(lagging.strands()[0].common_slot_bytes, 0U);
  EXPECT_GT(cut(lagging, 2560, staged())[0].last_lag, 0U);
  EXPECT_EQ(lagging.strands()[0].common_slot_bytes, ~std::size_t{0});
  PreparedCollective prepared(checked, 1);
  EXPECT_EQ(cut(prepared, 2560, staged())[0].common_slot_bytes, 0U);
}

TEST(Prepared, RoundsCoverAllElements) {
  for (const std::vector<int>& weight :
       {std::vector<int>{1}, {1, 1}, {2, 1}, {5, 2, 1}, {1, 7}, {100, 1}}) {
    PreparedCollective prepared = over(weight);
    for (const std::size_t count : {1U, 31U, 256U, 257U, 4096U, 100'003U}) {
      std::size_t end = 0;
      for (const executor::Strand& strand : cut(prepared, count, staged())) {
        EXPECT_EQ(strand.begin, end);
        end += strand.length;
        EXPECT_LE(strand.chunk_length, kChunkBytes / sizeof(float));
        EXPECT_GE(strand.rounds * strand.chunk_length, strand.part_length);
        // And no round is empty.
        EXPECT_LT(strand.rounds * strand.chunk_length, strand.part_length + strand.chunk_length);
      }
      EXPECT_EQ(end, count);
    }
  }
}

// A chunk that goes by address need not fit a slot.
TEST(Prepared, ChunksByAddressAreAsLongAsChosen) {
  PreparedCollective prepared = over({1});
  ASSERT_TRUE(prepared.all_by_address());
  tune::Choice choice = staged();
  choice.address_bytes = 2048;
  choice.address_chunk_bytes = 4096;
  const executor::Strand& strand = cut(prepared, 10'000, choice).front();
  EXPECT_EQ(strand.chunk_length, 1024U);
  EXPECT_EQ(strand.rounds, 10U);
  EXPECT_EQ(prepared.call().address_bytes, kChunkBytes) << "what fits no slot goes by address";
}

TEST(Prepared, ShorterChunksByAddressAreNotTaken) {
  PreparedCollective prepared = over({1});
  tune::Choice choice = staged();
  choice.address_bytes = 2048;
  choice.address_chunk_bytes = 512;
  EXPECT_EQ(cut(prepared, 10'000, choice).front().chunk_length, 256U);
  EXPECT_EQ(prepared.call().address_bytes, 2048U);
}

}  // namespace
}  // namespace ropewalk::comm
