#include "comm/call_pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "core/error.h"

namespace ropewalk::comm {
namespace {

constexpr int kRanks = 4;

// Prepares nothing, and counts.
class Counting final : public Executor {
 public:
  std::unique_ptr<PreparedCall> prepare(const CollectiveCall& call, const Extent& extent,
                                        std::shared_ptr<const tune::Choice> choice) override {
    ++prepared;
    return std::make_unique<PreparedCall>(call, extent, std::move(choice));
  }
  bool run(PreparedCall& /*prepared*/, const CollectiveCall& /*call*/, bool /*in_place*/,
           const executor::CallTag& /*tag*/, DeviceStream /*stream*/) override {
    return true;
  }
  void retire(std::unique_ptr<PreparedCall> call) override {
    EXPECT_NE(call, nullptr);
    ++retired;
  }
  void forget_schedules() override { ++forgotten; }
  [[nodiscard]] int max_channels() const noexcept override { return 2; }

  int prepared = 0;
  int retired = 0;
  int forgotten = 0;
};

class CallPipelineTest : public testing::Test {
 protected:
  CallPipelineTest() {
    Config config = Config::load();
    config.set("TUNE", "0", "test");
    tune::GroupFacts facts;
    facts.num_ranks = facts.max_ranks_per_host = kRanks;
    calls_ = std::make_unique<CallPipeline>(tune::host_tuner(config, facts, {}, schedules_),
                                            executor_, 1, kRanks);
  }
  static CollectiveCall all_reduce(std::size_t count) {
    CollectiveCall call;
    call.count = count;
    return call;
  }

  schedule::CheckedSchedules schedules_;
  Counting executor_;
  std::unique_ptr<CallPipeline> calls_;
};

TEST_F(CallPipelineTest, ACallOfTheSameShapeIsPreparedOnce) {
  float buffers[2] = {};
  CollectiveCall call = all_reduce(1);
  const PreparedCall* first = &calls_->get(call, 1);
  call.input = &buffers[0];
  call.output = &buffers[1];
  EXPECT_EQ(&calls_->get(call, 1), first);
  EXPECT_EQ(executor_.prepared, 1);
  EXPECT_EQ(first->extent().input_bytes, sizeof(float));
}

TEST_F(CallPipelineTest, EveryPartOfAShapeCounts) {
  CollectiveCall call = all_reduce(6);
  std::vector<CollectiveCall> others(6, call);
  others[0].count = 5;
  others[1].type = DataType::kInt32;
  others[2].op = RedOp::kMax;
  others[3].collective = Collective::kBroadcast;
  others[4].collective = Collective::kBroadcast;
  others[4].root = 2;
  others[5].op = RedOp::kPreMulSum;
  others[5].scalar = 7;
  EXPECT_TRUE(calls_->get(call, 1).serves(call));
  for (const CollectiveCall& other : others) {
    EXPECT_FALSE(calls_->get(call, 1).serves(other));
    EXPECT_TRUE(calls_->get(other, 1).serves(other));
  }
}

TEST_F(CallPipelineTest, WhatIsReplacedIsRetired) {
  for (std::size_t count = 1; count <= 1000; ++count) (void)calls_->get(all_reduce(count), 1);
  EXPECT_EQ(executor_.prepared, 1000);
  EXPECT_GE(executor_.retired, 900);
  calls_.reset();
  EXPECT_EQ(executor_.retired, 1000);
}

// As many as a training step has buckets.
TEST_F(CallPipelineTest, SomeDozenShapesAreKept) {
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < 24; ++i) (void)calls_->get(all_reduce(1000 + i * 37), 1);
  }
  EXPECT_LT(executor_.prepared, 40);
}

TEST_F(CallPipelineTest, AGivenScheduleIsUsedUntilItIsForgotten) {
  const CollectiveCall call = all_reduce(1 << 20);
  const std::string own = calls_->get(call, 1).choice().algorithm;
  calls_->use_schedule(schedules_.get("ring", {Collective::kAllReduce, kRanks, 0, 2}));
  EXPECT_EQ(calls_->get(call, 1).choice().algorithm, tune::kGivenSchedule);
  EXPECT_EQ(calls_->get(call, 1).choice().schedule->schedule().num_channels(), 2);
  calls_->forget_schedules();
  EXPECT_EQ(calls_->get(call, 1).choice().algorithm, own);
  EXPECT_EQ(executor_.forgotten, 2);
}

TEST_F(CallPipelineTest, AScheduleOfTooManyChannelsIsRefusedAndChangesNothing) {
  const CollectiveCall call = all_reduce(4);
  const PreparedCall* before = &calls_->get(call, 1);
  try {
    calls_->use_schedule(schedules_.get("ring", {Collective::kAllReduce, kRanks, 0, 3}));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    EXPECT_THAT(error.what(), testing::HasSubstr("the schedule has 3 channels"));
  }
  EXPECT_EQ(&calls_->get(call, 1), before);
}

TEST_F(CallPipelineTest, AWrongCallIsRefusedAndKeepsNothing) {
  CollectiveCall call = all_reduce(4);
  call.collective = Collective::kBroadcast;
  call.root = kRanks;
  EXPECT_THROW((void)calls_->get(call, 1), Error);
  EXPECT_EQ(executor_.prepared, 0);
}

}  // namespace
}  // namespace ropewalk::comm
