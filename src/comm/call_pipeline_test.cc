#include "comm/call_pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "bootstrap/unique_id.h"
#include "core/error.h"
#include "topology/testing/recorded.h"

namespace ropewalk::comm {
namespace {

constexpr int kPipelineRanks = 4;

// Prepares nothing, and counts.
class Counting : public Executor {
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

class CallPipelineTest : public ::testing::Test {
 protected:
  CallPipelineTest() {
    Config config = Config::load();
    config.set("TUNE", "0", "test");
    tune::GroupFacts facts;
    facts.num_ranks = facts.max_ranks_per_host = kPipelineRanks;
    calls_ = std::make_unique<CallPipeline>(tune::host_tuner(config, facts, {}, schedules_),
                                            executor_, 1, kPipelineRanks);
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

TEST_F(CallPipelineTest, ReplacedCallsAreRetired) {
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
  calls_->use_schedule(schedules_.get("ring", {Collective::kAllReduce, kPipelineRanks, 0, 2}));
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
    calls_->use_schedule(schedules_.get("ring", {Collective::kAllReduce, kPipelineRanks, 0, 3}));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("the schedule has 3 channels"));
  }
  EXPECT_EQ(&calls_->get(call, 1), before);
}

TEST_F(CallPipelineTest, AWrongCallIsRefusedAndKeepsNothing) {
  CollectiveCall call = all_reduce(4);
  call.collective = Collective::kBroadcast;
  call.root = kPipelineRanks;
  EXPECT_THROW((void)calls_->get(call, 1), Error);
  EXPECT_EQ(executor_.prepared, 0);
}

// As a GPU's, of rank 0, which agrees with itself.
class CallPipelineOfADevice : public ::testing::Test {
 protected:
  CallPipelineOfADevice() { config_.set("TUNE", "0", "test"); }
  ~CallPipelineOfADevice() override { alone_->leave(); }

  class Wide final : public Counting {
    [[nodiscard]] int max_channels() const noexcept override { return 64; }
  };
  Config config_ = Config::load();
  std::unique_ptr<bootstrap::Bootstrap> alone_ = bootstrap::Bootstrap::join(
      bootstrap::make_unique_id(config_), 0, 1, config_, deadline_after(std::chrono::seconds(30)));
  CallAgreement agreement_{*alone_};
  schedule::CheckedSchedules schedules_;
  Wide executor_;
};

// Its calls and the host's have one row of numbers, and each operation its own plans.
TEST_F(CallPipelineOfADevice, BeginsWithPlansThatWereMadeInTheBackgroundAtTheAgreedCall) {
  const auto plans = std::make_shared<tune::KeptPlans>();
  plans->plan_with([](const topology::Topology& machine, const tune::PlansRequest& request) {
    tune::PlansMade made;
    made.later = {"plan-optimal"};
    return request.thorough ? tune::make_plans(machine, request) : made;
  });
  tune::DeviceLimits limits;
  limits.channels = 64;
  limits.slot_bytes = {128 << 10, 8192, 0};
  tune::DeviceConstants constants;
  constants.link_rate = 20e9;
  const auto machine =
      std::make_shared<const topology::Topology>(topology::testing::machine("dgx1v"));
  tune::GroupFacts facts;
  facts.num_ranks = facts.max_ranks_per_host = 8;
  CallPipeline calls(
      tune::device_tuner(config_, facts, limits, constants, schedules_, machine, plans), executor_,
      0, 8);
  calls.plan_in_background(agreement_, true);
  CollectiveCall call;
  call.count = std::size_t{16} << 20;
  const AgreementSubject subject{true, Collective::kAllReduce, 0};
  std::uint64_t number = agreement_.pass(1, [] {}) - 1;
  EXPECT_EQ(calls.get(call, number).choice().routed, nullptr);
  while (agreement_.first_call(subject) == CallAgreement::kNever) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::uint64_t first = agreement_.first_call(subject);
  EXPECT_GT(first, number);
  for (; number < first; ++number) EXPECT_EQ(calls.get(call, number).choice().routed, nullptr);
  const int prepared = executor_.prepared;
  EXPECT_NE(calls.get(call, first).choice().routed, nullptr);
  EXPECT_NE(calls.get(call, first + 1).choice().routed, nullptr);
  EXPECT_EQ(executor_.prepared, prepared + 1);
  EXPECT_EQ(executor_.retired, prepared);
}

// What calls over both classes of links took gives the next ones another share.
TEST_F(CallPipelineOfADevice, SplitsOperationsAnewFromTheAgreedCallOn) {
  tune::DeviceLimits limits;
  limits.channels = 64;
  limits.slot_bytes = {512 << 10, 8192, 61440};
  limits.hybrid_channels = 8;
  limits.hybrid_slot_bytes = 128 << 10;
  tune::DeviceConstants constants;
  constants.hybrid_rate = 40e9;
  constants.hybrid_one_way_rate = 50e9;
  tune::GroupFacts facts;
  facts.num_ranks = facts.max_ranks_per_host = 2;
  facts.hybrid = tune::hybrid_links(constants, limits.hybrid_channels, limits.hybrid_slot_bytes);
  CallPipeline calls(tune::device_tuner(config_, facts, limits, constants, schedules_), executor_,
                     0, 2);
  calls.adapt_hybrid(agreement_, facts.hybrid);
  CollectiveCall call;
  call.count = std::size_t{64} << 20;
  std::uint64_t number = agreement_.pass(1, [] {});
  const auto routed = calls.get(call, number).choice().routed;
  ASSERT_NE(routed, nullptr);
  tune::HybridTimes times;
  times.share = routed->hybrid_share;
  times.bytes = static_cast<double>(call.count) * sizeof(float);
  times.hops = 1;
  times.host_later_seconds = times.bytes / constants.link_rate;
  while (agreement_.next(true) == CallAgreement::kNever) calls.measured(times);
  const std::uint64_t first = agreement_.next(true);
  EXPECT_EQ(calls.get(call, first - 1).choice().routed, routed);
  const auto& later = calls.get(call, first).choice().routed;
  EXPECT_NE(later, routed);
  EXPECT_LT(later == nullptr ? 0 : later->hybrid_share, 0.7 * routed->hybrid_share);
}

}  // namespace
}  // namespace ropewalk::comm
