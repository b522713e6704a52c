// A DGX-1's GPUs whose pairs without NVLink have no access to each other's memory: what the tuner
// takes from plans has no step between such a pair, and blocks (host threads) run it right.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/testing/share.h"
#include "executor/block/testing/case.h"
#include "topology/testing/recorded.h"
#include "tune/planned_candidates.h"
#include "tune/tuner.h"

namespace ropewalk::comm {
namespace {

using executor::Protocol;
using DeniedRanks = std::vector<std::pair<int, int>>;

constexpr int kDgx1Ranks = 8;
constexpr std::size_t kLongOnDgx1 = std::size_t{64} << 20;

std::shared_ptr<const topology::Topology> dgx1_found() {
  return std::make_shared<const topology::Topology>(topology::testing::machine("dgx1v"));
}

// Of ranks, the lower one first: rank r has the r-th GPU.
DeniedRanks without_nvlink(const topology::Topology& machine) {
  const auto gpus = machine.gpus();
  DeniedRanks pairs;
  for (int low = 0; low < kDgx1Ranks; ++low) {
    for (int high = low + 1; high < kDgx1Ranks; ++high) {
      const auto at = [&](int rank) { return gpus[static_cast<std::size_t>(rank)]; };
      if (!machine.find_link(at(low), at(high), topology::LinkType::kNvlink).has_value()) {
        pairs.emplace_back(low, high);
      }
    }
  }
  return pairs;
}

tune::DeviceLimits dgx1_limits() {
  tune::DeviceLimits limits;
  limits.channels = 64;
  limits.slot_bytes = {std::size_t{512} << 10, 8192, 61440};
  limits.host_path_slot_bytes = {std::size_t{64} << 10, 8192, 0};
  return limits;
}

tune::Tuner dgx1_tuner(const std::string& algorithm, const DeniedRanks& denied,
                       schedule::CheckedSchedules& schedules) {
  Config config = Config::load();
  config.set("TUNE", "0", "test");
  config.set("PLANNING", "wait", "test");
  config.set("ALGORITHM", algorithm, "test");
  tune::GroupFacts facts;
  facts.num_ranks = facts.max_ranks_per_host = kDgx1Ranks;
  facts.host_path_pairs = denied;
  return device_tuner(config, facts, dgx1_limits(), {}, schedules, dgx1_found());
}

// The links that a schedule's messages take, the lower rank first.
std::set<std::pair<int, int>> pairs_used(const schedule::Schedule& schedule) {
  std::set<std::pair<int, int>> used;
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    for (const auto& program : schedule.programs[static_cast<std::size_t>(rank)]) {
      for (const schedule::Step& step : program) {
        for (const int peer : step.send) used.insert(std::minmax(rank, peer));
      }
    }
  }
  return used;
}

bool uses_any_pair(const schedule::Schedule& schedule, const DeniedRanks& pairs) {
  const auto used = pairs_used(schedule);
  return std::ranges::any_of(pairs, [&](const auto& pair) { return used.contains(pair); });
}

std::uint64_t wrong_by_blocks(const schedule::Schedule& schedule, std::size_t count) {
  executor::testing::Case test;
  test.schedule = schedule;
  test.count = count;
  test.shape = {16, 16, 1920};
  return executor::testing::run<executor::ElementOf<DataType::kFloat32>, RedOp::kSum,
                                executor::testing::Compiled<Protocol::kSimple>>(test);
}

TEST(DeniedPairs, AreTwelveOfADgx1) {
  const DeniedRanks denied = without_nvlink(*dgx1_found());
  EXPECT_EQ(denied.size(), 12U);
  EXPECT_EQ(std::ranges::count(denied, std::pair(0, 5)), 1);
  EXPECT_EQ(std::ranges::count(denied, std::pair(0, 1)), 0);
  // What goes directly between all pairs would take them.
  EXPECT_TRUE(uses_any_pair(
      schedule::compile("two_shot", {Collective::kAllReduce, kDgx1Ranks, 0, 1}), denied));
}

TEST(DeniedPairs, PlansThatTheTunerTakesGoThroughNeighbours) {
  const DeniedRanks denied = without_nvlink(*dgx1_found());
  schedule::CheckedSchedules schedules;
  tune::Tuner own = dgx1_tuner("auto", denied, schedules);
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kBroadcast, Collective::kAllGather}) {
    const int root = has_root(collective) ? 3 : 0;
    const auto choice = own.choose(collective, root, kLongOnDgx1);
    ASSERT_NE(choice->routed, nullptr) << name(collective) << " by " << choice->algorithm;
    EXPECT_TRUE(choice->algorithm.starts_with("plan-")) << choice->algorithm;
    EXPECT_FALSE(uses_any_pair(choice->schedule->schedule(), denied)) << choice->algorithm;
    // Links through the host's memory would have neither.
    EXPECT_TRUE(choice->protocol == Protocol::kLl128 ||
                choice->chunk_bytes > dgx1_limits().host_path_slot_bytes[0])
        << choice->algorithm;
    const schedule::Schedule& planned = choice->routed->checked->schedule();
    EXPECT_EQ(wrong_by_blocks(planned, 1003), 0U) << choice->algorithm;
  }
}

TEST(DeniedPairs, EveryPlanOverNvlinkRunsRightWithoutThem) {
  const DeniedRanks denied = without_nvlink(*dgx1_found());
  const topology::Topology machine = tune::planned_machine(*dgx1_found());
  ropewalk::testing::Share share;
  int ran = 0;
  for (const Collective collective : {Collective::kAllReduce, Collective::kBroadcast,
                                      Collective::kAllGather, Collective::kReduceScatter}) {
    const tune::PlansRequest request{collective, 0, dgx1_limits().channels, true};
    const tune::PlannedCandidates found =
        tune::compile_plans(tune::make_plans(machine, request), request);
    for (const auto& candidate : found.schedules) {
      if (tune::beside_fabric(candidate->algorithm)) continue;
      const schedule::Schedule& planned = candidate->checked->schedule();
      EXPECT_FALSE(uses_any_pair(planned, denied)) << candidate->algorithm;
      if (!share.next()) continue;
      ++ran;
      EXPECT_EQ(wrong_by_blocks(planned, 517), 0U) << name(collective) << candidate->algorithm;
    }
  }
  EXPECT_GT(ran, 0);
}

}  // namespace
}  // namespace ropewalk::comm
