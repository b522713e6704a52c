#include "tune/nic_rounds.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "plan/planner.h"
#include "schedule/compile.h"
#include "schedule/from_plan.h"
#include "tune/cost_model.h"
#include "tune/hosts_machine.h"
#include "tune/rail_weights.h"

namespace ropewalk::tune {
namespace {

using schedule::Checked;

constexpr std::uint32_t kSlots = 5;
const std::vector<int> kTwoAndTwo = {0, 0, 1, 1};
constexpr std::array kOneNic = {1e9};

std::shared_ptr<const Checked> shape(const char* algorithm, Collective collective, int ranks,
                                     int channels = 1, std::vector<int> host_of_rank = {}) {
  return schedule::CheckedSchedules().get(
      algorithm, {collective, ranks, 0, channels, {}, std::move(host_of_rank)});
}

std::shared_ptr<const Checked> planned(const char* algorithm, const std::vector<int>& hosts) {
  plan::Request request;
  request.collective = Collective::kAllReduce;
  request.algorithm = algorithm;
  return std::make_shared<const Checked>(
      Checked::from(schedule::from_plan(plan::make_plan(hosts_machine(hosts), request),
                                        schedule::Pipelining::kByLags)
                        .schedule));
}

NicRounds rounds(const std::shared_ptr<const Checked>& checked, const std::vector<int>& hosts,
                 std::span<const double> rates, int hops = 1) {
  return NicHosts(hosts, rates).rounds_of(*checked, hops, kSlots);
}

TEST(NicRounds, AMessageBetweenHostsTakesItsBytes) {
  const NicRounds found = rounds(shape("direct", Collective::kBroadcast, 2), {0, 1}, kOneNic);
  EXPECT_NEAR(found.alone, 1e-9, 1e-14);
  EXPECT_NEAR(found.period, 1e-9, 1e-14);
  EXPECT_NEAR(found.seconds(10, 1e6), 10e-3, 1e-7);
}

TEST(NicRounds, WithinAHostNothingTakesTime) {
  const NicRounds found = rounds(shape("ring", Collective::kAllReduce, 2), {0, 0}, kOneNic);
  EXPECT_LT(found.seconds(10, 1e6), 1e-7);
}

// Each rank but one sends every quarter twice: six quarters leave each host in a round.
TEST(NicRounds, ARingSendsAsMuchAsItMust) {
  const NicRounds found = rounds(shape("ring", Collective::kAllReduce, 4), kTwoAndTwo, kOneNic);
  EXPECT_NEAR(found.period, 1.5e-9, 0.05e-9);
  EXPECT_GE(found.alone, 1.5e-9 * 0.999);
}

// Each byte goes up to the root's host and comes down again: over the two directions of the NICs
// at once. One round alone has the one after the other.
TEST(NicRounds, UpAndDownATreeOverlapInLongCalls) {
  const NicRounds found = rounds(planned("three-phase", kTwoAndTwo), kTwoAndTwo, kOneNic);
  EXPECT_NEAR(found.period, 1e-9, 0.02e-9);
  EXPECT_NEAR(found.alone, 2e-9, 0.02e-9);
  EXPECT_GT(found.first, 1.5e-9);
  EXPECT_LT(found.seconds(100, 1e4), 1.05e-3);
}

TEST(NicRounds, DirectExchangesSendMore) {
  const NicRounds all = rounds(shape("two_shot", Collective::kAllReduce, 4), kTwoAndTwo, kOneNic);
  const NicRounds few =
      rounds(shape("hierarchical", Collective::kAllReduce, 4, 1, kTwoAndTwo), kTwoAndTwo, kOneNic);
  EXPECT_NEAR(all.period, 2e-9, 0.05e-9);
  EXPECT_NEAR(few.period, 1e-9, 0.05e-9);
}

TEST(NicRounds, SeveralNicsCarryTogetherWhatTheirWeightsSay) {
  constexpr std::array kRates = {1e9, 0.5e9};
  const auto plain = shape("direct", Collective::kBroadcast, 2, 2);
  schedule::Schedule weighted = plain->schedule();
  weighted.weight = channel_weights(kRates, 2);
  const auto balanced = std::make_shared<const Checked>(Checked::from(std::move(weighted)));
  EXPECT_NEAR(rounds(balanced, {0, 1}, kRates).period, 1 / 1.5e9, 1e-12);
  // Half of the data is on the slow one.
  EXPECT_NEAR(rounds(plain, {0, 1}, kRates).period, 1 / 1e9, 1e-12);
}

TEST(NicRounds, LinksThatShareANicAreCounted) {
  EXPECT_EQ(rounds(shape("ring", Collective::kAllReduce, 4), kTwoAndTwo, kOneNic).links, 1);
  const auto direct = shape("hierarchical", Collective::kAllReduce, 4, 2, kTwoAndTwo);
  EXPECT_EQ(rounds(direct, kTwoAndTwo, kOneNic).links, 4);
  EXPECT_EQ(rounds(direct, kTwoAndTwo, std::array{1e9, 1e9}).links, 2);
  EXPECT_EQ(rounds(shape("ring", Collective::kAllReduce, 2), {0, 0}, kOneNic).links, 0);
}

// Of many ranks a formula: no less than the bytes take, no more than a walk would by far.
TEST(NicRounds, SchedulesOfManyMessagesAreNotWalked) {
  std::vector<int> hosts(64, 0);
  for (std::size_t rank = 32; rank < hosts.size(); ++rank) hosts[rank] = 1;
  const NicRounds found = rounds(shape("ring", Collective::kAllReduce, 64), hosts, kOneNic, 4);
  EXPECT_NEAR(found.period, 126.0 / 64 * 1e-9, 1e-12);
  EXPECT_LT(found.alone, 3e-9);
}

TEST(NicCost, IsThatOfItsScheduleAndKnowsWhatItIsAtLeast) {
  constexpr std::array kRates = {1e9, 0.5e9};
  const auto hosts = std::make_shared<const NicHosts>(kTwoAndTwo, kRates);
  for (const char* algorithm : {"ring", "two_shot", "recursive_doubling", "double_binary_tree"}) {
    for (const int channels : {1, 2, 3}) {
      const auto checked = shape(algorithm, Collective::kAllReduce, 4, channels);
      const double leaving = ScheduleShape::of(*checked, kTwoAndTwo).leaving_units;
      NicCost cost(hosts, checked, leaving, 3, kSlots);
      const NicRounds found = cost.rounds();
      EXPECT_DOUBLE_EQ(found.period, hosts->rounds_of(*checked, 3, kSlots).period);
      for (const double rounds_made : {1.0, 3.0, 50.0}) {
        EXPECT_LE(cost.least().seconds(rounds_made, 1e4), found.seconds(rounds_made, 1e4) * 1.0001)
            << algorithm << " " << channels;
      }
    }
  }
}

}  // namespace
}  // namespace ropewalk::tune
