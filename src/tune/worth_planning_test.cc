// Which machines that were found have plans as candidates, by which price, and that what is chosen
// is not dearer than the best of the registry's schedules.
#include "tune/worth_planning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "plan/planner.h"
#include "topology/testing/recorded.h"
#include "tune/hosts_machine.h"
#include "tune/tuner.h"

namespace ropewalk::tune {
namespace {

using topology::Topology;

constexpr std::size_t kLongUnits = std::size_t{64} << 20;

Topology part(const char* name, const std::vector<int>& gpus) {
  return topology::testing::machine(name).with_gpus(gpus);
}

Config worth_config(const char* algorithm = "auto", const char* planning = "wait") {
  Config config = Config::load();
  config.set("TUNE", "0", "test");
  config.set("PLANNING", planning, "test");
  config.set("ALGORITHM", algorithm, "test");
  return config;
}

bool is_plan(const Choice& choice) { return choice.algorithm.starts_with("plan-"); }

std::set<std::string> plans_of(const std::vector<Choice>& candidates) {
  std::set<std::string> names;
  for (const Choice& choice : candidates) {
    if (is_plan(choice)) names.insert(choice.algorithm);
  }
  return names;
}

double best_shape(const std::vector<Choice>& candidates) {
  double best = std::numeric_limits<double>::infinity();
  for (const Choice& choice : candidates) {
    if (!is_plan(choice)) best = std::min(best, choice.predicted_seconds);
  }
  return best;
}

TEST(WorthPlanning, GpusWithUnequalLinks) {
  for (const char* name : {"dgx1v", "dgx1p"}) {
    EXPECT_TRUE(worth_planning(topology::testing::machine(name))) << name;
  }
  EXPECT_TRUE(worth_planning(part("dgx1v", {0, 1, 2, 3})));  // each with each, at two rates
  EXPECT_TRUE(worth_planning(part("dgx1v", {0, 1, 5})));     // 0 and 5 through neither's links
}

TEST(WorthPlanning, NotGpusThatAreJoinedAlike) {
  for (const char* name : {"dgx2", "dgx-a100", "dgx-h100", "h200-2gpu", "h200-4gpu"}) {
    EXPECT_FALSE(worth_planning(topology::testing::machine(name))) << name;
  }
  EXPECT_FALSE(worth_planning(part("dgx1v", {0, 3})));
}

TEST(WorthPlanning, NotGpusThatNvlinkDoesNotConnect) {
  for (const char* name : {"pcie-8gpu-2numa", "dgx-h100-x2", "cornelis-p100-opa-x2"}) {
    EXPECT_FALSE(worth_planning(topology::testing::machine(name))) << name;
  }
  EXPECT_FALSE(worth_planning(part("dgx1v", {1, 4, 6})));
}

// ---- GPUs of a host that was found ------------------------------------------------------

Tuner on_gpus(const Topology& machine, schedule::CheckedSchedules& schedules) {
  DeviceLimits limits;
  limits.channels = 64;
  limits.slot_bytes = {128 << 10, 8192, 0};
  GroupFacts facts;
  facts.num_ranks = facts.max_ranks_per_host = static_cast<int>(machine.gpus().size());
  DeviceConstants constants;
  constants.link_rate = 20e9;
  // As a communicator does it.
  return device_tuner(
      worth_config(), facts, limits, constants, schedules,
      worth_planning(machine) ? std::make_shared<const Topology>(machine) : nullptr);
}

TEST(PlansForFoundGpus, AreCandidatesOnADgx1OverNvlinkAlone) {
  const Topology machine = topology::testing::machine("dgx1v");
  schedule::CheckedSchedules schedules;
  Tuner tuner = on_gpus(machine, schedules);
  EXPECT_TRUE(tuner.plans());
  for (const Collective collective : plan::planned_collectives()) {
    for (const std::size_t bytes : {std::size_t{8}, std::size_t{1} << 20, kLongUnits}) {
      const std::vector<Choice> candidates = tuner.priced(collective, 0, bytes);
      const std::set<std::string> plans = plans_of(candidates);
      EXPECT_TRUE(plans.contains("plan-packed")) << name(collective);
      // Kernels take NVLink between two GPUs that it joins, whatever such a plan says.
      EXPECT_FALSE(plans.contains("plan-optimal-pcie"));
      for (const std::string& plan : plans) EXPECT_FALSE(plan.ends_with("-hybrid")) << plan;
      const Choice chosen = *tuner.choose(collective, 0, bytes);
      EXPECT_LE(chosen.predicted_seconds, best_shape(candidates)) << name(collective);
      // Between, either may be cheaper.
      if (bytes == 8 || bytes == kLongUnits) {
        EXPECT_EQ(is_plan(chosen), bytes == kLongUnits) << name(collective);
      }
    }
  }
}

TEST(PlansForFoundGpus, AreNoneBehindASwitch) {
  schedule::CheckedSchedules schedules;
  Tuner tuner = on_gpus(topology::testing::machine("dgx-h100"), schedules);
  EXPECT_FALSE(tuner.plans());
  EXPECT_TRUE(plans_of(tuner.priced(Collective::kAllReduce, 0, kLongUnits)).empty());
}

// ---- host memory of several hosts -------------------------------------------------------

GroupFacts on_found_hosts(std::vector<int> host_of_rank, std::vector<double> rail_rates) {
  GroupFacts facts;
  std::map<int, int> ranks;
  for (const int host : host_of_rank) ++ranks[host];
  facts.num_ranks = static_cast<int>(host_of_rank.size());
  facts.num_hosts = static_cast<int>(ranks.size());
  for (const auto& [host, count] : ranks) {
    facts.max_ranks_per_host = std::max(facts.max_ranks_per_host, count);
  }
  facts.ranks_per_processor = 0.5;
  if (facts.num_hosts > 1) facts.host_of_rank = std::move(host_of_rank);
  facts.rail_rates = std::move(rail_rates);
  facts.lag_slots = 5;
  return facts;
}

const std::vector<int> kThreeAndFive = {0, 0, 0, 1, 1, 1, 1, 1};
const std::vector<double> kUnequalNics = {1e9, 0.5e9};

TEST(HostsMachine, RanksAreAtTheirHosts) {
  const Topology machine = hosts_machine(std::vector{0, 1, 0, 1, 2});
  EXPECT_EQ(machine.hosts(), 3);
  ASSERT_EQ(machine.gpus().size(), 5U);
  EXPECT_EQ(machine.node(machine.gpus()[2]).host, 0);
  EXPECT_EQ(machine.node(machine.gpus()[3]).host, 1);
  EXPECT_EQ(machine.node(machine.gpus()[4]).host, 2);
}

TEST(HostsMachine, SeveralRanksOnOneOfSeveralHostsCanBePlannedFor) {
  for (const std::vector<int>& hosts : {kThreeAndFive, {0, 0, 1, 1}, {0, 1, 0, 1}}) {
    EXPECT_TRUE(can_plan(on_found_hosts(hosts, {})));
  }
  // Apart, together, and too many.
  std::vector<int> many(65, 0);
  many.back() = 1;
  for (const std::vector<int>& hosts : {std::vector{0, 1, 2, 3}, std::vector{0, 0, 0, 0}, many}) {
    EXPECT_FALSE(can_plan(on_found_hosts(hosts, kUnequalNics)));
  }
}

TEST(PlansForFoundHosts, AreNoneUnaskedWhereNicsAreNotKnown) {
  for (const std::vector<int>& hosts :
       {std::vector{0, 0, 0, 0}, std::vector{0, 1, 2, 3}, std::vector{0, 0, 1, 1}, kThreeAndFive}) {
    schedule::CheckedSchedules schedules;
    Tuner tuner = host_tuner(worth_config(), on_found_hosts(hosts, {}), {}, schedules);
    EXPECT_FALSE(tuner.plans());
    EXPECT_TRUE(plans_of(tuner.priced(Collective::kAllReduce, 0, kLongUnits)).empty());
  }
}

TEST(PlansForFoundHosts, AreCandidatesWhereNicsAreKnown) {
  for (const std::vector<int>& hosts : {std::vector{0, 0, 1, 1}, kThreeAndFive}) {
    for (const bool several : {false, true}) {
      GroupFacts facts = on_found_hosts(hosts, several ? kUnequalNics : std::vector<double>());
      if (!several) facts.nic_rate = 1e9;
      schedule::CheckedSchedules schedules;
      Tuner tuner = host_tuner(worth_config(), facts, {}, schedules);
      EXPECT_TRUE(tuner.plans());
      EXPECT_EQ(tuner.machine(), nullptr);
      for (const Collective collective : plan::planned_collectives()) {
        for (const std::size_t bytes : {std::size_t{8}, std::size_t{1} << 20, kLongUnits}) {
          const std::vector<Choice> candidates = tuner.priced(collective, 0, bytes);
          EXPECT_FALSE(plans_of(candidates).empty()) << name(collective);
          const Choice chosen = *tuner.choose(collective, 0, bytes);
          EXPECT_DOUBLE_EQ(chosen.predicted_seconds, candidates.front().predicted_seconds);
          EXPECT_LE(chosen.predicted_seconds, best_shape(candidates)) << name(collective);
        }
      }
    }
  }
}

// Of hosts with unequally many ranks, as of others: by hierarchical schedules as little leaves a
// host as by plans, and by no other schedule of the registry.
TEST(PlansForFoundHosts, TakeNoLessThanHierarchicalSchedulesWhereNicsLimit) {
  schedule::CheckedSchedules schedules;
  Tuner tuner =
      host_tuner(worth_config(), on_found_hosts(kThreeAndFive, {20e6, 10e6}), {}, schedules);
  std::vector<Choice> others = tuner.priced(Collective::kAllReduce, 0, 4 << 20);
  EXPECT_FALSE(plans_of(others).empty());
  const Choice chosen = *tuner.choose(Collective::kAllReduce, 0, 4 << 20);
  EXPECT_EQ(chosen.algorithm, "hierarchical");
  std::erase_if(others, [](const Choice& each) { return each.algorithm == "hierarchical"; });
  EXPECT_LE(chosen.predicted_seconds, others.front().predicted_seconds);
  EXPECT_LT(chosen.predicted_seconds, 0.8 * best_shape(others));
}

// All ranks price alike, and so choose alike.
TEST(PlansForFoundHosts, AreTheSameOnAllRanks) {
  schedule::CheckedSchedules schedules;
  const GroupFacts facts = on_found_hosts({0, 1, 0, 1, 0}, {20e6, 10e6});
  Tuner one = host_tuner(worth_config(), facts, {}, schedules);
  Tuner other = host_tuner(worth_config(), facts, {}, schedules);
  for (const std::size_t bytes : {std::size_t{64} << 10, std::size_t{4} << 20}) {
    const auto mine = one.choose(Collective::kAllReduce, 0, bytes);
    const auto theirs = other.choose(Collective::kAllReduce, 0, bytes);
    EXPECT_EQ(mine->algorithm, theirs->algorithm);
    EXPECT_EQ(mine->chunk_bytes, theirs->chunk_bytes);
    EXPECT_EQ(mine->schedule->schedule(), theirs->schedule->schedule());
  }
}

// ---- rules for NICs ---------------------------------------------------------------------

std::vector<Choice> by_rule(const std::vector<Choice>& all, const std::string& algorithm,
                            plan::NicRule rule) {
  std::vector<Choice> found;
  for (const Choice& choice : all) {
    if (choice.algorithm == algorithm && choice.nic_rule == rule) found.push_back(choice);
  }
  return found;
}

TEST(NicRules, UnequalNicsArePricedBalancedAndByTheLeastUsed) {
  schedule::CheckedSchedules schedules;
  Tuner tuner =
      host_tuner(worth_config(), on_found_hosts(kThreeAndFive, {20e6, 10e6}), {}, schedules);
  const std::vector<Choice> all = tuner.priced(Collective::kAllReduce, 0, 4 << 20);
  const auto least_used = by_rule(all, "ring", plan::NicRule::kLeastUsed);
  ASSERT_EQ(least_used.size(), 1U);
  EXPECT_EQ(least_used.front().channels, 2);
  // The slow NIC has half of the data then.
  for (const Choice& balanced : by_rule(all, "ring", plan::NicRule::kBalanced)) {
    if (balanced.channels < 2) continue;
    EXPECT_LT(balanced.predicted_seconds, 0.8 * least_used.front().predicted_seconds);
  }
  EXPECT_EQ(tuner.choose(Collective::kAllReduce, 0, 4 << 20)->nic_rule, plan::NicRule::kBalanced);
}

TEST(NicRules, OfEqualNicsShapesHaveOneForm) {
  schedule::CheckedSchedules schedules;
  Tuner tuner =
      host_tuner(worth_config(), on_found_hosts(kThreeAndFive, {20e6, 19e6}), {}, schedules);
  const std::vector<Choice> all = tuner.priced(Collective::kAllReduce, 0, 4 << 20);
  EXPECT_TRUE(by_rule(all, "ring", plan::NicRule::kLeastUsed).empty());
}

// A plan of several trees: each on one NIC instead of each on all, so that fewer links share one.
TEST(NicRules, TheLeastUsedIsTakenWhereSharingCosts) {
  schedule::CheckedSchedules schedules;
  GroupFacts facts = on_found_hosts({0, 0, 1, 1}, {20e6, 20e6});
  facts.nic_sharing_cost = 0.5;
  Tuner tuner = host_tuner(worth_config("plan-rail-chain"), facts, {}, schedules);
  const std::vector<Choice> all = tuner.priced(Collective::kAllReduce, 0, 4 << 20);
  const auto balanced = by_rule(all, "plan-rail-chain", plan::NicRule::kBalanced);
  const auto least_used = by_rule(all, "plan-rail-chain", plan::NicRule::kLeastUsed);
  ASSERT_EQ(balanced.size(), 1U);
  ASSERT_EQ(least_used.size(), 1U);
  EXPECT_EQ(balanced.front().channels, 2 * least_used.front().channels);
  EXPECT_LT(least_used.front().predicted_seconds, 0.8 * balanced.front().predicted_seconds);
  const Choice chosen = *tuner.choose(Collective::kAllReduce, 0, 4 << 20);
  EXPECT_EQ(chosen.nic_rule, plan::NicRule::kLeastUsed);
  EXPECT_EQ(chosen.schedule->schedule().num_channels(), least_used.front().channels);
}

// ---- plans that a setting names ---------------------------------------------------------

TEST(PlansForFoundHosts, NamedTheyHaveEachChannelOnEachNic) {
  schedule::CheckedSchedules schedules;
  Tuner tuner = host_tuner(worth_config("plan-three-phase"),
                           on_found_hosts(kThreeAndFive, kUnequalNics), {}, schedules);
  EXPECT_EQ(tuner.machine(), nullptr);
  const Choice chosen = *tuner.choose(Collective::kAllReduce, 0, kLongUnits);
  EXPECT_EQ(chosen.algorithm, "plan-three-phase");
  // Out of each host as much as it must; a ring sends 14 eighths.
  EXPECT_LT(ScheduleShape::of(*chosen.schedule, kThreeAndFive).leaving_units, 1.4);
  const std::vector<int>& weights = chosen.schedule->schedule().weight;
  ASSERT_EQ(weights.size() % 2, 0U);
  for (std::size_t c = 0; c < weights.size(); c += 2) {
    EXPECT_NEAR(static_cast<double>(weights[c]) / weights[c + 1], 2, 0.01);
  }
}

TEST(PlansForFoundHosts, ASettingNamesThemAnywhereBetweenHosts) {
  schedule::CheckedSchedules schedules;
  Tuner tuner = host_tuner(worth_config("plan-ring", "background"),
                           on_found_hosts({0, 1, 0, 1}, {}), {}, schedules);
  EXPECT_EQ(tuner.choose(Collective::kAllReduce, 0, 1 << 20)->algorithm, "plan-ring");
  const auto why_not = [&](const std::vector<int>& hosts, const char* plan) -> std::string {
    try {
      Tuner other = host_tuner(worth_config(plan), on_found_hosts(hosts, {}), {}, schedules);
      (void)other.choose(Collective::kAllReduce, 0, 1 << 20);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_THAT(why_not({0, 1, 0, 1}, "all_reduce=plan-optimal-pcie"),
              ::testing::HasSubstr("no \"plan-optimal-pcie\" for all_reduce on hosts: "));
  EXPECT_THAT(why_not({0, 0, 0, 0}, "all_reduce=plan-ring"),
              ::testing::HasSubstr("is a plan for a machine, and none is known"));
}

}  // namespace
}  // namespace ropewalk::tune
