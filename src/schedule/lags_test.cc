#include "schedule/lags.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "core/testing/share.h"
#include "schedule/check.h"
#include "schedule/compile.h"
#include "schedule/from_plan.h"
#include "schedule/layout.h"
#include "schedule/testing/hosts.h"
#include "schedule/testing/random_plans.h"
#include "schedule/testing/reference_run.h"

namespace ropewalk::schedule {
namespace {

using Lags = std::vector<std::vector<std::uint32_t>>;
constexpr std::uint32_t kRounds = 5;

// A rank's steps, in order: (round, step).
std::vector<std::pair<std::uint32_t, std::size_t>> order_of(const std::vector<std::uint32_t>& lags,
                                                            std::uint32_t rounds) {
  std::uint32_t last = 0;
  for (const std::uint32_t lag : lags) last = std::max(last, lag);
  std::vector<std::pair<std::uint32_t, std::size_t>> order;
  for (std::uint32_t turn = 0; turn < rounds + last; ++turn) {
    for (std::size_t s = 0; s < lags.size(); ++s) {
      if (turn >= lags[s] && turn - lags[s] < rounds) order.emplace_back(turn - lags[s], s);
    }
  }
  return order;
}

// Runs all ranks in the order that the lags give, over links that hold `slots` chunks. A chunk is
// named by its round and block.
// @return the error; empty for none
std::string run(const Schedule& schedule, const Lags& lags, std::uint32_t slots,
                std::uint32_t rounds = kRounds) {
  using Chunk = std::pair<std::uint32_t, int>;
  std::map<std::pair<int, int>, std::deque<Chunk>> links;
  const auto ranks = static_cast<std::size_t>(schedule.num_ranks);
  std::vector<std::vector<std::pair<std::uint32_t, std::size_t>>> orders;
  for (std::size_t r = 0; r < ranks; ++r) orders.push_back(order_of(lags[r], rounds));
  std::vector<std::size_t> at(ranks);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < ranks; ++r) {
      const int rank = static_cast<int>(r);
      for (; at[r] < orders[r].size(); ++at[r], moved = true) {
        const auto& [round, s] = orders[r][at[r]];
        const Step& step = schedule.programs[r][0][s];
        bool ready = true;
        for (const Operand& operand : step.operands) {
          if (operand.kind == Operand::Kind::kLink) ready &= !links[{operand.peer, rank}].empty();
        }
        for (const int to : step.send) ready &= links[{rank, to}].size() < slots;
        if (!ready) break;
        for (const Operand& operand : step.operands) {
          if (operand.kind != Operand::Kind::kLink) continue;
          std::deque<Chunk>& link = links[{operand.peer, rank}];
          if (link.front() != Chunk{round, step.block}) return "a chunk of another round or block";
          link.pop_front();
        }
        for (const int to : step.send) links[{rank, to}].emplace_back(round, step.block);
      }
    }
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    if (at[r] < orders[r].size()) return "ranks wait for each other";
  }
  for (const auto& [pair, link] : links) {
    if (!link.empty()) return "chunks are left";
  }
  return "";
}

TEST(Lags, RingAllReducesNeedTwoSlotsMoreThanTheyHaveChunks) {
  for (int ranks = 3; ranks <= 9; ++ranks) {
    const Schedule schedule = compile("ring", {Collective::kAllReduce, ranks, 0, 1});
    const auto chunks = static_cast<std::uint32_t>(2 * (ranks - 1));
    EXPECT_EQ(find_lags(schedule, 0, chunks + 1)[0].back(), 0U) << ranks;
    const Lags lags = find_lags(schedule, 0, chunks + 2);
    EXPECT_EQ(lags[0].back(), chunks) << ranks;
    // Longer than the lags, so that all steps run in some turns.
    EXPECT_EQ(run(schedule, lags, chunks + 2, 2 * chunks), "") << ranks;
    EXPECT_EQ(run(schedule, lags, chunks + 1, 2 * chunks), "ranks wait for each other") << ranks;
  }
}

TEST(Lags, EveryAlgorithmRunsInTheirOrder) {
  int lagging = 0;
  for (const Algorithm& algorithm : algorithms()) {
    for (int c = 0; c < kNumCollectives; ++c) {
      for (int ranks = 2; ranks <= 7; ++ranks) {
        const auto collective = static_cast<Collective>(c);
        const Request request{collective, ranks, has_root(collective) ? ranks / 2 : 0, 1};
        for (const Request& placed : testing::with_hosts(algorithm, request)) {
          const Schedule schedule = compile(algorithm.name, placed);
          for (const std::uint32_t slots : {2U, 3U, 4U, 5U, 6U, 8U, 9U, 32U}) {
            const Lags lags = find_lags(schedule, 0, slots);
            EXPECT_EQ(run(schedule, lags, slots), "")
                << algorithm.name << " " << name(collective) << " " << ranks << " ranks, " << slots
                << " slots, hosts " << fmt::format("{}", fmt::join(placed.host_of_rank, " "));
            for (const auto& list : lags) lagging += !list.empty() && list.back() > 0 ? 1 : 0;
          }
        }
      }
    }
  }
  EXPECT_GT(lagging, 1000);
}

// In any order of progress, on numbers: staged and direct, in place and out of place. An address is
// read as late as the step that takes it.
// @return the steps that lag
int expect_right(const Schedule& schedule, std::uint32_t slots, ropewalk::testing::Share& share) {
  const CheckReport report = check(schedule);
  EXPECT_TRUE(report.accepted);
  testing::RunOptions options;
  options.slots = slots;
  int lagging = 0;
  for (int channel = 0; channel < schedule.num_channels(); ++channel) {
    options.lags.push_back(find_lags(schedule, channel, slots));
    for (const auto& list : options.lags.back()) {
      lagging += static_cast<int>(std::ranges::count_if(list, [](auto lag) { return lag > 0; }));
    }
  }
  const auto pieces = static_cast<std::size_t>(schedule.parts * schedule.num_channels());
  // The last parts have fewer elements, and rounds without any.
  for (const std::size_t count : {4 * pieces + 1, std::size_t{19}}) {
    for (const bool by_address : {false, true}) {
      for (const bool in_place : {false, true}) {
        if ((in_place && !report.in_place) || !share.next()) continue;
        options.count = count;
        options.direct = by_address ? &report : nullptr;
        options.in_place = in_place;
        ++options.seed;
        const auto wrong = testing::wrong_effect(schedule, options);
        EXPECT_FALSE(wrong.has_value())
            << *wrong << ": " << schedule.algorithm << " " << name(schedule.collective) << " "
            << schedule.num_ranks << " ranks, " << slots << " slots, count " << count
            << (by_address ? ", by address" : "") << (in_place ? ", in place" : "");
      }
    }
  }
  return lagging;
}

TEST(Lags, EveryAlgorithmComputesTheSame) {
  ropewalk::testing::Share share;
  int lagging = 0;
  for (const Algorithm& algorithm : algorithms()) {
    for (int c = 0; c < kNumCollectives; ++c) {
      for (int ranks = 2; ranks <= 6; ++ranks) {
        const auto collective = static_cast<Collective>(c);
        const Request request{collective, ranks, has_root(collective) ? ranks / 2 : 0, 2};
        for (const Request& placed : testing::with_hosts(algorithm, request)) {
          for (const std::uint32_t slots : {4U, 16U}) {
            lagging += expect_right(compile(algorithm.name, placed), slots, share);
          }
        }
      }
    }
  }
  EXPECT_GT(lagging, 1000);
}

TEST(Lags, EveryPlanComputesTheSame) {
  ropewalk::testing::Share share;
  int lagging = 0;
  testing::for_every_plan([&](const plan::Plan& plan) {
    for (const Pipelining pipelining : {Pipelining::kByParts, Pipelining::kByLags}) {
      const Schedule schedule = from_plan(plan, pipelining).schedule;
      for (const std::uint32_t slots : {4U, 32U}) {
        const int steps = expect_right(schedule, slots, share);
        lagging += steps;
        // What relies on lags has them.
        if (plan.collective == Collective::kAllReduce && pipelining == Pipelining::kByLags) {
          EXPECT_GT(steps, 0);
        }
      }
    }
  });
  EXPECT_GT(lagging, 1000);
}

TEST(Lags, TheBroadcastOfAnAllReduceLagsBehindItsReduce) {
  plan::Plan plan;
  plan.collective = Collective::kAllReduce;
  plan.algorithm = "chain";
  plan.gpus.resize(3);
  plan.trees = {{0, 1, {{2, 1, {}}, {1, 0, {}}}, {{0, 1, {}}, {1, 2, {}}}}};
  const Schedule chain = from_plan(plan, Pipelining::kByLags).schedule;
  EXPECT_EQ(find_lags(chain, 0, 4), (Lags{{2}, {1, 3}, {0, 4}}));
  // The sum of a part is read in the round after it was written, although an earlier read would
  // delay no other step.
  const Schedule parts = from_plan(plan).schedule;
  const Lags lags = find_lags(parts, 0, 16);
  for (std::size_t s = 0; s < lags[2].size(); ++s) {
    EXPECT_EQ(lags[2][s], parts.programs[2][0][s].send.empty() ? 4U : 0U);
  }
}

TEST(Lags, ReceiversAreOneRoundBehindSenders) {
  const Schedule two_shot = compile("two_shot", {Collective::kAllReduce, 4, 0, 1});
  for (const auto& list : find_lags(two_shot, 0, 4)) {
    EXPECT_EQ(list, (std::vector<std::uint32_t>{0, 0, 0, 1, 2, 2, 2}));
  }
  const auto hierarchical = [](Collective collective, int hosts) {
    const std::vector<int> host_of_rank = testing::equal_hosts(hosts, 2);
    const Request request{collective, 2 * hosts, 0, 1, {}, host_of_rank};
    return find_lags(compile("hierarchical", request), 0, 16)[0];
  };
  EXPECT_EQ(hierarchical(Collective::kAllReduce, 2), (std::vector<std::uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(hierarchical(Collective::kReduceScatter, 3).back(), 2U);
  EXPECT_EQ(hierarchical(Collective::kAllGather, 3).back(), 2U);
  EXPECT_EQ(hierarchical(Collective::kAllReduce, 3).back(), 4U);
  EXPECT_EQ(hierarchical(Collective::kReduce, 3).back(), 4U);
  const Schedule chain = compile("chain", {Collective::kBroadcast, 3, 0, 1});
  EXPECT_EQ(find_lags(chain, 0, 2), (Lags{{0}, {1}, {2}}));
}

TEST(Lags, NoneWhereALinkHoldsTooFewChunks) {
  const Schedule ring = compile("ring", {Collective::kAllGather, 4, 0, 1});
  EXPECT_EQ(find_lags(ring, 0, 4), Lags(4, std::vector<std::uint32_t>(4, 0)));
  EXPECT_EQ(find_lags(ring, 0, 5)[0], (std::vector<std::uint32_t>{0, 1, 2, 3}));
  // And with lags that it has no room for it does not end: what the test above runs is no
  // formality.
  EXPECT_EQ(run(ring, find_lags(ring, 0, 6), 2), "ranks wait for each other");
}

// In one step, rank 2 takes rank 0's chunk directly and through rank 1.
TEST(Lags, NoneWhereAStepTakesChunksOfDifferentAge) {
  Schedule schedule;
  schedule.collective = Collective::kReduce;
  schedule.num_ranks = 3;
  schedule.root = 2;
  schedule.weight = {1};
  Step first;
  first.operands = {Operand::input()};
  first.send = {1, 2};
  Step second;
  second.operands = {Operand::link(0)};
  second.send = {2};
  Step third;
  third.operands = {Operand::link(0), Operand::link(1)};
  third.write_output = true;
  schedule.programs = {{{first}}, {{second}}, {{third}}};
  EXPECT_EQ(find_lags(schedule, 0, 16), (Lags{{0}, {0}, {0}}));
}

Step sends(int block, int to) {
  Step step;
  step.block = block;
  step.operands = {Operand::input()};
  step.send = {to};
  return step;
}
Step takes(int block, int from) {
  Step step;
  step.block = block;
  step.operands = {Operand::link(from)};
  step.write_output = true;
  return step;
}

// Rank 1 takes before it sends, rank 0 sends before it takes.
TEST(Lags, OnlyStepsOfOneBlockKeepTheirOrder) {
  Schedule schedule;
  schedule.collective = Collective::kAllToAll;
  schedule.num_ranks = 2;
  schedule.weight = {1};
  schedule.programs = {{{sends(1, 1), takes(2, 1)}}, {{takes(1, 0), sends(2, 0)}}};
  EXPECT_EQ(find_lags(schedule, 0, 8), (Lags{{0, 1}, {1, 0}}));
  for (auto& rank : schedule.programs) {
    for (Step& step : rank[0]) step.block = 0;
  }
  EXPECT_EQ(find_lags(schedule, 0, 8), (Lags{{0, 2}, {1, 1}}));
}

// The chunk that rank 0 sends last is the first that rank 2 takes, by two links of different age.
TEST(Lags, NoneWhereNoLagsKeepTheOrderOfABlock) {
  Schedule schedule;
  schedule.collective = Collective::kBroadcast;
  schedule.num_ranks = 3;
  schedule.weight = {1};
  Step passes_on = takes(0, 0);
  passes_on.send = {2};
  schedule.programs = {{{sends(0, 2), sends(0, 1)}}, {{passes_on}}, {{takes(0, 1), takes(0, 0)}}};
  EXPECT_EQ(find_lags(schedule, 0, 8), (Lags{{0, 0}, {0}, {0, 0}}));
  std::swap(schedule.programs[2][0][0], schedule.programs[2][0][1]);
  EXPECT_EQ(find_lags(schedule, 0, 8), (Lags{{0, 0}, {1}, {1, 2}}));
}

}  // namespace
}  // namespace ropewalk::schedule
