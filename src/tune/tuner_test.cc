// What host memory and GPUs have in common: settings, schedules that the user gave.
#include "tune/tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "tune/cost_model.h"

namespace ropewalk::tune {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kLongMessage = std::size_t{16} << 20;

Config config_with(const char* setting, const char* value) {
  Config config = Config::load();
  config.set("TUNE", "0", "test");
  config.set(setting, value, "test");
  return config;
}

struct Kind {
  const char* name;
  Tuner (*make)(const Config& config, int num_ranks, schedule::CheckedSchedules& schedules);
};

Tuner for_host(const Config& config, int num_ranks, schedule::CheckedSchedules& schedules) {
  GroupFacts facts;
  facts.num_ranks = facts.max_ranks_per_host = num_ranks;
  return host_tuner(config, facts, {}, schedules);
}

DeviceLimits limits_of(std::size_t ll128_slot) {
  DeviceLimits limits;
  limits.slot_bytes = {512 << 10, 8192, ll128_slot};
  return limits;
}

GroupFacts on_one_host(int num_ranks) {
  GroupFacts facts;
  facts.num_ranks = facts.max_ranks_per_host = num_ranks;
  return facts;
}

Tuner for_gpus(const Config& config, int num_ranks, schedule::CheckedSchedules& schedules) {
  return device_tuner(config, on_one_host(num_ranks), limits_of(61440), {}, schedules);
}

class Tuners : public ::testing::TestWithParam<Kind> {
 protected:
  Tuner tuner(const Config& config, int num_ranks = 4) {
    return GetParam().make(config, num_ranks, schedules_);
  }
  schedule::CheckedSchedules schedules_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, Tuners,
                         ::testing::Values(Kind{"host", for_host}, Kind{"gpus", for_gpus}),
                         [](const auto& kind) { return std::string(kind.param.name); });

TEST_P(Tuners, AnAlgorithmForAllServesTheOperationsThatItSupports) {
  Tuner forced = tuner(config_with("ALGORITHM", "one_shot"));
  EXPECT_EQ(forced.choose(Collective::kAllReduce, 0, kLongMessage)->algorithm, "one_shot");
  EXPECT_TRUE(forced.is_forced(Collective::kAllReduce, 0));
  EXPECT_NE(forced.choose(Collective::kSendRecv, 0, kLongMessage)->algorithm, "one_shot");
  EXPECT_FALSE(forced.is_forced(Collective::kSendRecv, 0));
}

TEST_P(Tuners, AnAlgorithmForAnOperationThatItCannotDoIsRefused) {
  Tuner forced = tuner(config_with("ALGORITHM", "sendrecv=one_shot"));
  try {
    (void)forced.choose(Collective::kSendRecv, 0, 8);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("\"one_shot\" cannot do sendrecv over 4 ranks"));
  }
  EXPECT_NE(forced.choose(Collective::kAllReduce, 0, 8), nullptr);
}

TEST_P(Tuners, AProtocolThatLinksDoNotHaveIsPassedOver) {
  schedule::CheckedSchedules schedules;
  const Config config = config_with("PROTOCOL", "ll128");
  Tuner without = std::string(GetParam().name) == "host"
                      ? for_host(config, 4, schedules)
                      : device_tuner(config, on_one_host(4), limits_of(0), {}, schedules);
  EXPECT_NE(without.choose(Collective::kAllReduce, 0, 8)->protocol, executor::Protocol::kLl128);
}

// A chain's odd channels go the other way around: what the first channel does not use, they may.
TEST(DeviceTuner, WhatUsesLinksThroughTheHostKeepsToTheirSlotsWithAnyNumberOfChannels) {
  using DeniedPairs = std::vector<std::pair<int, int>>;
  const std::vector<std::pair<int, DeniedPairs>> machines = {
      {3, {{0, 2}}}, {3, {{0, 1}}}, {4, {{0, 3}, {1, 2}}}, {4, {{2, 3}}}, {5, {{0, 4}}}};
  for (const auto& [ranks, denied] : machines) {
    GroupFacts facts = on_one_host(ranks);
    facts.host_path_pairs = denied;
    DeviceLimits limits = limits_of(61440);
    limits.channels = 32;
    limits.host_path_slot_bytes = {std::size_t{64} << 10, 8192, 0};
    schedule::CheckedSchedules schedules;
    Tuner tuner = device_tuner(config_with("ALGORITHM", "auto"), facts, limits, {}, schedules);
    int through = 0;
    for (int c = 0; c < kNumCollectives; ++c) {
      const auto collective = static_cast<Collective>(c);
      for (int root = 0; root < (has_root(collective) ? ranks : 1); ++root) {
        for (std::size_t bytes = 8; bytes <= kLongMessage; bytes *= 16) {
          const auto choice = tuner.choose(collective, root, bytes);
          if (units_over(choice->schedule->schedule(), denied) == 0) continue;
          ++through;
          EXPECT_NE(choice->protocol, executor::Protocol::kLl128) << name(collective) << bytes;
          EXPECT_LE(choice->chunk_bytes,
                    limits.host_path_slot_bytes[static_cast<std::size_t>(choice->protocol)])
              << name(collective) << " " << choice->algorithm << " of " << bytes << " from "
              << root;
        }
      }
    }
    EXPECT_GT(through, 0);
  }
}

TEST_P(Tuners, AGivenScheduleServesItsOperationAlone) {
  Tuner own = tuner(config_with("ALGORITHM", "auto"));
  const auto before = own.choose(Collective::kBroadcast, 1, kLongMessage);
  own.use(schedules_.get("chain", {Collective::kBroadcast, 4, 1, 1}));
  EXPECT_TRUE(own.is_given(Collective::kBroadcast, 1));
  EXPECT_FALSE(own.is_given(Collective::kBroadcast, 0));
  const auto given = own.choose(Collective::kBroadcast, 1, kLongMessage);
  EXPECT_EQ(given->algorithm, kGivenSchedule);
  EXPECT_NE(given->index, before->index);
  EXPECT_EQ(given->schedule->schedule().root, 1);
  EXPECT_EQ(given->schedule->schedule().num_channels() % given->channels, 0);
  EXPECT_NE(own.choose(Collective::kBroadcast, 0, kLongMessage)->algorithm, kGivenSchedule);
  EXPECT_NE(own.choose(Collective::kAllReduce, 0, kLongMessage)->algorithm, kGivenSchedule);
  own.forget();
  EXPECT_EQ(own.choose(Collective::kBroadcast, 1, kLongMessage)->algorithm, before->algorithm);
}

// A schedule that was given, taken back and given again must not be mistaken for the first one.
TEST_P(Tuners, GivenSchedulesFollowEachOther) {
  Tuner own = tuner(config_with("ALGORITHM", "auto"));
  for (const char* algorithm : {"chain", "binary_tree", "chain"}) {
    auto compiled = schedule::compile(algorithm, {Collective::kBroadcast, 4, 0, 1});
    own.use(
        std::make_shared<const schedule::Checked>(schedule::Checked::from(std::move(compiled))));
    const auto choice = own.choose(Collective::kBroadcast, 0, kLongMessage);
    EXPECT_EQ(choice->schedule->schedule().algorithm, algorithm);
  }
}

// In one host nobody gains by passing blocks on: a root sends as much to two as to all.
TEST_P(Tuners, ScattersAndGathersOfOneHostAreDirectUnlessASettingNamesATree) {
  for (const int ranks : {4, 8}) {
    Tuner own = tuner(config_with("ALGORITHM", "auto"), ranks);
    Tuner forced = tuner(config_with("ALGORITHM", "binary_tree"), ranks);
    for (const Collective collective : {Collective::kScatter, Collective::kGather}) {
      for (std::size_t bytes = 8; bytes <= 4 * kLongMessage; bytes *= 8) {
        EXPECT_EQ(own.choose(collective, 0, bytes)->algorithm, "direct") << ranks << " " << bytes;
      }
      EXPECT_EQ(forced.choose(collective, 0, 8)->algorithm, "binary_tree");
    }
  }
}

TEST_P(Tuners, EveryChoiceComesWithItsSchedule) {
  Tuner own = tuner(config_with("ALGORITHM", "auto"));
  for (int c = 0; c < kNumCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    for (std::size_t bytes = 0; bytes <= kLongMessage; bytes = bytes * 64 + 1) {
      const auto choice = own.choose(collective, 0, bytes);
      ASSERT_NE(choice->schedule, nullptr) << name(collective) << " of " << bytes;
      EXPECT_EQ(choice->schedule->schedule().collective, collective);
      EXPECT_EQ(choice->schedule->schedule().num_channels() % choice->channels, 0);
    }
  }
}

// Forms that calls may have instead of the chosen one: other algorithms only where no sum depends
// on the algorithm, where no setting names one, and where links between hosts are not at stake.
TEST(HostTuner, OtherFormsHaveTheSameResult) {
  GroupFacts facts = on_one_host(8);
  facts.all_by_address = true;
  schedule::CheckedSchedules schedules;
  Tuner own = host_tuner(config_with("ALGORITHM", "auto"), facts, {}, schedules);
  bool other_algorithms = false;
  for (int c = 0; c < kNumCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    for (const std::size_t bytes : {std::size_t{1} << 12U, std::size_t{1} << 18U, kLongMessage}) {
      SCOPED_TRACE(std::string(name(collective)) + " of " + std::to_string(bytes));
      const auto choice = own.choose(collective, 5, bytes);
      EXPECT_EQ(choice->others.empty(), !choice->other.has_value());
      std::set<std::pair<std::string, bool>> forms = {
          {choice->algorithm, choice->address_chunk_bytes > 0}};
      for (const auto& other : choice->others) {
        EXPECT_TRUE(forms.emplace(other->algorithm, other->address_chunk_bytes > 0).second);
        ASSERT_NE(other->schedule, nullptr);
        EXPECT_EQ(other->schedule->schedule().collective, collective);
        EXPECT_EQ(other->schedule->schedule().root, has_root(collective) ? 5 : 0);
        EXPECT_TRUE(other->others.empty());
        if (reduces(collective)) {
          EXPECT_EQ(other->schedule, choice->schedule);
        }
        other_algorithms |= other->algorithm != choice->algorithm;
      }
    }
  }
  EXPECT_TRUE(other_algorithms);

  Tuner named = host_tuner(config_with("ALGORITHM", "chain"), facts, {}, schedules);
  const auto only = named.choose(Collective::kBroadcast, 5, std::size_t{1} << 18U);
  for (const auto& other : only->others) EXPECT_EQ(other->algorithm, "chain");
}

}  // namespace
}  // namespace ropewalk::tune
