#include "tune/hosts_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "tune/planned_candidates.h"
#include "tune/tuner.h"

namespace ropewalk::tune {
namespace {

GroupFacts on_hosts(std::vector<int> host_of_rank) {
  GroupFacts facts;
  std::map<int, int> ranks;
  for (const int host : host_of_rank) ++ranks[host];
  facts.num_ranks = static_cast<int>(host_of_rank.size());
  facts.num_hosts = static_cast<int>(ranks.size());
  for (const auto& [host, count] : ranks) {
    facts.max_ranks_per_host = std::max(facts.max_ranks_per_host, count);
  }
  facts.host_of_rank = std::move(host_of_rank);
  facts.lag_slots = 5;
  return facts;
}

TEST(HostsMachine, RanksAreAtTheirHosts) {
  const topology::Topology machine = hosts_machine(std::vector{0, 1, 0, 1, 2});
  EXPECT_EQ(machine.hosts(), 3);
  ASSERT_EQ(machine.gpus().size(), 5U);
  EXPECT_EQ(machine.node(machine.gpus()[2]).host, 0);
  EXPECT_EQ(machine.node(machine.gpus()[3]).host, 1);
  EXPECT_EQ(machine.node(machine.gpus()[4]).host, 2);
}

TEST(HostsMachine, OnlySeveralHostsWithSeveralRanksAreWorthPlanning) {
  EXPECT_TRUE(worth_planning(on_hosts({0, 0, 1, 1})));
  EXPECT_TRUE(worth_planning(on_hosts({0, 1, 1})));
  EXPECT_FALSE(worth_planning(on_hosts({0, 1, 2, 3})));
  EXPECT_FALSE(worth_planning(on_hosts({0, 0, 0, 0})));
  EXPECT_FALSE(worth_planning(on_hosts(std::vector<int>(65, 0))));
  std::vector<int> many(66, 0);
  many.back() = 1;
  EXPECT_FALSE(worth_planning(on_hosts(many)));
}

class OnHosts : public ::testing::TestWithParam<std::vector<int>> {};

TEST_P(OnHosts, PlansAreMadeAndChecked) {
  const topology::Topology machine = planned_machine(hosts_machine(GetParam()));
  for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather,
                                      Collective::kReduceScatter, Collective::kBroadcast}) {
    const PlansRequest request{collective, 0, 16, true, true};
    const PlannedCandidates made = compile_plans(make_plans(machine, request), request);
    std::set<std::string> names;
    for (const auto& each : made.schedules) names.insert(each->algorithm);
    EXPECT_TRUE(names.contains("plan-ring") || collective == Collective::kBroadcast)
        << name(collective);
    EXPECT_FALSE(names.empty()) << name(collective);
  }
}

INSTANTIATE_TEST_SUITE_P(All, OnHosts,
                         ::testing::Values(std::vector{0, 0, 1, 1}, std::vector{0, 1, 0, 1},
                                           std::vector{0, 0, 0, 1},
                                           std::vector{0, 0, 1, 1, 2, 2, 3, 3}));

Config config(const char* planning) {
  Config config = Config::load();
  config.set("TUNE", "0", "test");
  config.set("PLANNING", planning, "test");
  return config;
}

Choice chosen(const std::vector<int>& host_of_rank, const char* planning, std::size_t bytes) {
  schedule::CheckedSchedules schedules;
  Tuner tuner = host_tuner(config(planning), on_hosts(host_of_rank), {}, schedules);
  return *tuner.choose(Collective::kAllReduce, 0, bytes);
}

// How much of an all-reduce leaves a host, for each byte of it.
double leaving(const Choice& choice, const std::vector<int>& host_of_rank) {
  ScheduleShape shape = ScheduleShape::of(*choice.schedule);
  return static_cast<double>(leaving_host(choice.schedule->schedule(), host_of_rank)) /
         (shape.parts * shape.channels);
}

// Ranks that a launcher dealt out over hosts one by one: a ring in their order crosses between
// hosts at each step.
TEST(PlansForHosts, LongAllReducesCrossBetweenHostsAsLittleAsTheyCan) {
  for (const std::vector<int>& hosts :
       {std::vector{0, 0, 1, 1}, std::vector{0, 1, 0, 1}, std::vector{0, 1, 0, 1, 0, 1, 0, 1}}) {
    const Choice plan = chosen(hosts, "wait", 64 << 20);
    EXPECT_TRUE(plan.algorithm.starts_with("plan-")) << plan.algorithm;
    const Choice shape = chosen(hosts, "brief", 64 << 20);
    EXPECT_LE(plan.predicted_seconds, shape.predicted_seconds);
    // What any all-reduce over two hosts must: each gives the other all of its sum.
    EXPECT_LT(leaving(plan, hosts), 1.6) << plan.algorithm;
  }
}

TEST(PlansForHosts, AreNoneWhereRanksAreApartOrTogether) {
  for (const std::vector<int>& hosts : {std::vector{0, 1, 2, 3}, std::vector{0, 0, 0, 0}}) {
    GroupFacts facts = on_hosts(hosts);
    if (facts.num_hosts == 1) facts.host_of_rank.clear();
    schedule::CheckedSchedules schedules;
    Tuner tuner = host_tuner(config("wait"), facts, {}, schedules);
    EXPECT_FALSE(tuner.plans());
    for (const Choice& choice : tuner.priced(Collective::kAllReduce, 0, 1 << 20)) {
      EXPECT_FALSE(choice.algorithm.starts_with("plan-"));
    }
  }
}

TEST(PlansForHosts, APlanCanBeForced) {
  Config forced = config("background");
  forced.set("ALGORITHM", "all_reduce=plan-ring", "test");
  schedule::CheckedSchedules schedules;
  Tuner tuner = host_tuner(forced, on_hosts({0, 1, 0, 1}), {}, schedules);
  EXPECT_EQ(tuner.choose(Collective::kAllReduce, 0, 1 << 20)->algorithm, "plan-ring");
  // And one that there is not is told with the reason.
  forced.set("ALGORITHM", "all_reduce=plan-optimal-pcie", "test");
  Tuner without = host_tuner(forced, on_hosts({0, 1, 0, 1}), {}, schedules);
  try {
    (void)without.choose(Collective::kAllReduce, 0, 1 << 20);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("on these hosts"));
  }
}

}  // namespace
}  // namespace ropewalk::tune
