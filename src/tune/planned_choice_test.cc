// The tuner's choices if it knows the machine: plans for long messages, schedules with few hops for
// short ones, the same on every rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "plan/planner.h"
#include "topology/testing/recorded.h"
#include "tune/tuner.h"

namespace ropewalk::tune {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const topology::Topology> recorded(const std::string& name) {
  return std::make_shared<const topology::Topology>(topology::testing::machine(name));
}

std::shared_ptr<const topology::Topology> part_of(const std::string& name,
                                                  const std::vector<int>& gpus) {
  return std::make_shared<const topology::Topology>(
      topology::testing::machine(name).with_gpus(gpus));
}

Config planned_config(const std::string& algorithm = "auto") {
  Config config = Config::load();
  config.set("TUNE", "0", "test");
  config.set("ALGORITHM", algorithm, "test");
  return config;
}

// A rank of a job, and its choice.
class Rank {
 public:
  explicit Rank(const std::shared_ptr<const topology::Topology>& machine,
                const std::string& algorithm = "auto", int max_channels = 16)
      : tuner_(host_tuner(planned_config(algorithm), facts(*machine, max_channels), {}, schedules_,
                          machine)) {}
  Tuner& tuner() { return tuner_; }
  const Choice& choose(Collective collective, std::size_t bytes, int root = 0) {
    return *tuner_.choose(collective, root, bytes);
  }

 private:
  static GroupFacts facts(const topology::Topology& machine, int max_channels) {
    GroupFacts facts;
    facts.num_ranks = facts.max_ranks_per_host = static_cast<int>(machine.gpus().size());
    facts.max_channels = max_channels;
    return facts;
  }
  schedule::CheckedSchedules schedules_;
  Tuner tuner_;
};

constexpr std::size_t kLong = std::size_t{64} << 20;

TEST(PlannedChoice, LongMessagesOnADgx1TakePlans) {
  Rank rank(recorded("dgx1v"));
  for (const Collective collective : {Collective::kBroadcast, Collective::kAllReduce}) {
    const Choice& choice = rank.choose(collective, kLong);
    ASSERT_NE(choice.routed, nullptr) << choice.algorithm;
    EXPECT_EQ(choice.routed->algorithm, choice.algorithm);
    EXPECT_GT(choice.algbw_gbps, collective == Collective::kBroadcast ? 149 : 85)
        << choice.algorithm;
    EXPECT_EQ(choice.routed->checked->schedule().collective, collective);
    EXPECT_LE(choice.routed->checked->schedule().num_channels(), 16);
  }
}

// As on an emulated machine, where a message costs next to nothing but the links' time.
TEST(PlannedChoice, WhereStepsLagAllReducesByTreesComeCloseToTheirLinks) {
  for (const std::vector<int>& gpus :
       {std::vector{0, 1, 4}, std::vector{0, 1, 2, 4, 7}, std::vector{0, 1, 2, 3, 4, 5, 6}}) {
    const auto machine = part_of("dgx1v", gpus);
    GroupFacts facts;
    facts.num_ranks = facts.num_hosts = static_cast<int>(gpus.size());
    facts.slot_bytes = 512 << 10;
    facts.lag_slots = 8;
    MachineConstants constants;
    constants.network_message = 1e-9;
    schedule::CheckedSchedules schedules;
    Tuner tuner = host_tuner(planned_config(), facts, constants, schedules, machine);
    // So long that filling and draining take little of it.
    constexpr std::size_t kVeryLong = 4 * kLong;
    const Choice choice = *tuner.choose(Collective::kAllReduce, 0, kVeryLong);
    const double least = static_cast<double>(kVeryLong) / (choice.algbw_gbps * 1e9);
    ASSERT_NE(choice.routed, nullptr) << choice.algorithm;
    EXPECT_EQ(choice.routed->checked->schedule().parts, 1) << choice.algorithm;
    EXPECT_LT(choice.predicted_seconds, least / 0.95) << choice.algorithm;
    EXPECT_GE(choice.predicted_seconds, least) << choice.algorithm;
  }
}

// The same machine by GPUs' own walk, of which each block is a channel.
TEST(PlannedChoice, GpusOfADescribedMachineTakePlansToo) {
  const auto machine = recorded("dgx1v");
  schedule::CheckedSchedules schedules;
  DeviceLimits limits;
  limits.channels = 64;
  limits.slot_bytes = {128 << 10, 8192, 0};
  DeviceConstants constants;
  constants.link_rate = 20e9;
  GroupFacts facts;
  facts.num_ranks = facts.max_ranks_per_host = 8;
  Tuner tuner = device_tuner(planned_config(), facts, limits, constants, schedules, machine);
  for (const Collective collective : {Collective::kBroadcast, Collective::kAllReduce}) {
    const Choice choice = *tuner.choose(collective, 0, kLong);
    ASSERT_NE(choice.routed, nullptr) << choice.algorithm;
    EXPECT_GT(choice.algbw_gbps, collective == Collective::kBroadcast ? 120 : 80)
        << choice.algorithm;
    EXPECT_LE(choice.channels, 64);
    EXPECT_EQ(choice.schedule->schedule().num_channels(), choice.channels);
    EXPECT_EQ(choice.channels % choice.routed->checked->schedule().num_channels(), 0);
    EXPECT_GT(choice.predicted_seconds, static_cast<double>(kLong) / (choice.algbw_gbps * 1e9));
    EXPECT_EQ(tuner.choose(collective, 0, 8)->routed, nullptr);
  }
  EXPECT_EQ(tuner.choose(Collective::kGather, 0, kLong)->routed, nullptr);
}

TEST(PlannedChoice, ShortMessagesTakeShortShapes) {
  Rank rank(recorded("dgx1v"));
  for (const Collective collective : {Collective::kBroadcast, Collective::kAllReduce}) {
    const Choice& choice = rank.choose(collective, 8);
    EXPECT_EQ(choice.routed, nullptr) << choice.algorithm;
    EXPECT_LT(choice.predicted_seconds, 20e-6);
  }
}

TEST(PlannedChoice, EveryRankChoosesTheSame) {
  const auto machine = recorded("dgx1v");
  Rank one(machine);
  Rank other(machine);
  for (const Collective collective : plan::planned_collectives()) {
    for (std::size_t bytes = 1; bytes <= kLong; bytes *= 16) {
      const Choice& a = one.choose(collective, bytes);
      const Choice& b = other.choose(collective, bytes);
      EXPECT_EQ(a.algorithm, b.algorithm);
      EXPECT_EQ(a.chunk_bytes, b.chunk_bytes);
      EXPECT_EQ(a.predicted_seconds, b.predicted_seconds);
      ASSERT_EQ(a.routed == nullptr, b.routed == nullptr);
      if (a.routed != nullptr) {
        EXPECT_EQ(a.routed->checked->schedule(), b.routed->checked->schedule());
      }
    }
  }
}

// Only candidates that may be the cheapest are priced.
TEST(PlannedChoice, IsTheCheapestOfAllCandidates) {
  for (const char* machine : {"dgx1v", "h200-4gpu"}) {
    Rank rank(recorded(machine));
    for (const Collective collective : plan::planned_collectives()) {
      // Powers of two, each of which stands for all sizes up to the next.
      for (std::size_t bytes = 2; bytes <= kLong; bytes *= 256) {
        const Choice& choice = rank.choose(collective, bytes);
        const Choice cheapest = rank.tuner().priced(collective, 0, bytes).front();
        EXPECT_EQ(choice.algorithm, cheapest.algorithm) << name(collective) << " of " << bytes;
        EXPECT_EQ(choice.predicted_seconds, cheapest.predicted_seconds);
        EXPECT_EQ(choice.chunk_bytes, cheapest.chunk_bytes);
      }
    }
  }
}

TEST(PlannedChoice, RootedCollectivesArePlannedFromEachRoot) {
  Rank rank(recorded("dgx1v"));
  for (const Collective collective : {Collective::kBroadcast, Collective::kReduce}) {
    for (int root = 0; root < 8; ++root) {
      const Choice& choice = rank.choose(collective, kLong, root);
      ASSERT_NE(choice.routed, nullptr) << choice.algorithm;
      EXPECT_EQ(choice.routed->checked->schedule().root, root);
    }
  }
}

TEST(PlannedChoice, OperationsWithoutPlansKeepTheirAlgorithms) {
  Rank rank(recorded("dgx1v"));
  for (const Collective collective :
       {Collective::kGather, Collective::kScatter, Collective::kAllToAll, Collective::kSendRecv}) {
    const Choice& choice = rank.choose(collective, kLong);
    EXPECT_EQ(choice.routed, nullptr);
    EXPECT_GT(choice.algbw_gbps, 0) << "priced on the machine";
  }
}

// GPUs 0 and 5 of a DGX-1 are not joined by NVLink, nor is any other of these with 5.
TEST(PlannedChoice, GpusWithoutAConnectingNvlinkPlaneTakeDefaultRoutes) {
  const auto machine = part_of("dgx1v", {0, 1, 5, 6});
  Rank rank(machine);
  const Choice& choice = rank.choose(Collective::kAllReduce, kLong);
  EXPECT_GT(choice.algbw_gbps, 0);
  if (choice.routed == nullptr) return;
  // No hop goes over PCIe between two GPUs that NVLink joins.
  const schedule::Schedule& schedule = choice.routed->checked->schedule();
  EXPECT_EQ(schedule.num_ranks, 4);
}

TEST(PlannedChoice, TwoGpus) {
  Rank rank(recorded("h200-2gpu"));
  EXPECT_GT(rank.choose(Collective::kAllReduce, kLong).algbw_gbps, 100);
  EXPECT_EQ(rank.choose(Collective::kAllReduce, 8).routed, nullptr);
}

TEST(PlannedChoice, OneRankPlansNothing) {
  Rank rank(part_of("dgx1v", {3}));
  const Choice& choice = rank.choose(Collective::kAllReduce, kLong);
  EXPECT_EQ(choice.routed, nullptr);
  EXPECT_EQ(choice.algbw_gbps, 0);
}

TEST(PlannedChoice, SchedulesKeepToTheChannelsThatThereAre) {
  for (const int channels : {1, 2, 5}) {
    Rank rank(recorded("dgx1v"), "auto", channels);
    for (const Collective collective : plan::planned_collectives()) {
      for (const Choice& choice : rank.tuner().priced(collective, 0, kLong)) {
        if (choice.routed == nullptr) continue;
        EXPECT_LE(choice.routed->checked->schedule().num_channels(), channels);
      }
    }
  }
}

TEST(PlannedChoice, ASettingNamesAPlan) {
  Rank rank(recorded("dgx1v"), "all_reduce=plan-packed,broadcast=ring");
  EXPECT_EQ(rank.choose(Collective::kAllReduce, 8).algorithm, "plan-packed");
  EXPECT_EQ(rank.choose(Collective::kAllReduce, kLong).algorithm, "plan-packed");
  EXPECT_TRUE(rank.tuner().is_forced(Collective::kAllReduce, 0));
  EXPECT_FALSE(rank.tuner().is_forced(Collective::kAllGather, 0));
}

TEST(PlannedChoice, APlanForAllIsForThoseThatItServes) {
  Rank rank(recorded("dgx1v"), "plan-packed");
  EXPECT_EQ(rank.choose(Collective::kReduce, kLong).algorithm, "plan-packed");
  EXPECT_FALSE(rank.tuner().is_forced(Collective::kAllToAll, 0));
  EXPECT_EQ(rank.choose(Collective::kAllToAll, kLong).routed, nullptr);
}

std::string refusal(Tuner& tuner, Collective collective) {
  try {
    (void)tuner.choose(collective, 0, kLong);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

TEST(PlannedChoice, APlanThatThereIsNotIsRefusedWithTheReason) {
  Rank rank(recorded("dgx1v"), "all_reduce=plan-three-phase");
  EXPECT_THAT(refusal(rank.tuner(), Collective::kAllReduce),
              HasSubstr("no \"plan-three-phase\" for all_reduce on dgx1v: three-phase: all GPUs"));
}

TEST(PlannedChoice, APlanWithoutAMachineIsRefused) {
  schedule::CheckedSchedules schedules;
  GroupFacts facts;
  facts.num_ranks = 8;
  Tuner tuner = host_tuner(planned_config("plan-packed"), facts, {}, schedules);
  EXPECT_THAT(refusal(tuner, Collective::kAllReduce), HasSubstr("TOPOLOGY"));
  EXPECT_EQ(tuner.choose(Collective::kAllToAll, 0, 8)->algorithm, "direct");
}

}  // namespace
}  // namespace ropewalk::tune
