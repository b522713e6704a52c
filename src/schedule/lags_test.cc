#include "schedule/lags.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "schedule/compile.h"

namespace ropewalk::schedule {
namespace {

using Lags = std::vector<std::vector<std::uint32_t>>;
constexpr std::uint32_t kRounds = 5;

// What a rank does, in order: (round, step).
std::vector<std::pair<std::uint32_t, std::size_t>> order_of(
    const std::vector<std::uint32_t>& lags) {
  std::uint32_t last = 0;
  for (const std::uint32_t lag : lags) last = std::max(last, lag);
  std::vector<std::pair<std::uint32_t, std::size_t>> order;
  for (std::uint32_t turn = 0; turn < kRounds + last; ++turn) {
    for (std::size_t s = 0; s < lags.size(); ++s) {
      if (turn >= lags[s] && turn - lags[s] < kRounds) order.emplace_back(turn - lags[s], s);
    }
  }
  return order;
}

// Runs all ranks in the order that the lags give, over links that hold `slots` chunks. A chunk is
// named by its round and block. @return what went wrong; empty for nothing
std::string run(const Schedule& schedule, const Lags& lags, std::uint32_t slots) {
  using Chunk = std::pair<std::uint32_t, int>;
  std::map<std::pair<int, int>, std::deque<Chunk>> links;
  const auto ranks = static_cast<std::size_t>(schedule.num_ranks);
  std::vector<std::vector<std::pair<std::uint32_t, std::size_t>>> orders;
  for (std::size_t r = 0; r < ranks; ++r) orders.push_back(order_of(lags[r]));
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

TEST(Lags, EveryAlgorithmRunsInTheirOrder) {
  int lagging = 0;
  for (const Algorithm& algorithm : algorithms()) {
    for (int c = 0; c < kNumCollectives; ++c) {
      for (int ranks = 2; ranks <= 7; ++ranks) {
        const auto collective = static_cast<Collective>(c);
        const Request request{collective, ranks, has_root(collective) ? ranks / 2 : 0, 1};
        if (!algorithm.supports(request)) continue;
        const Schedule schedule = compile(algorithm.name, request);
        for (const std::uint32_t slots : {2U, 4U, 8U, 32U}) {
          const Lags lags = find_lags(schedule, 0, slots);
          EXPECT_EQ(run(schedule, lags, slots), "")
              << algorithm.name << " " << name(collective) << " " << ranks << " ranks, " << slots
              << " slots";
          for (const auto& list : lags) lagging += !list.empty() && list.back() > 0 ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(lagging, 1000);
}

TEST(Lags, ReceiversAreOneRoundBehindSenders) {
  const Schedule two_shot = compile("two_shot", {Collective::kAllReduce, 4, 0, 1});
  for (const auto& list : find_lags(two_shot, 0, 4)) {
    EXPECT_EQ(list, (std::vector<std::uint32_t>{0, 0, 0, 1, 2, 2, 2}));
  }
  const Schedule chain = compile("chain", {Collective::kBroadcast, 3, 0, 1});
  EXPECT_EQ(find_lags(chain, 0, 2), (Lags{{0}, {1}, {2}}));
}

TEST(Lags, NoneWhereALinkHoldsTooFewChunks) {
  const Schedule ring = compile("ring", {Collective::kAllGather, 4, 0, 1});
  EXPECT_EQ(find_lags(ring, 0, 5), Lags(4, std::vector<std::uint32_t>(4, 0)));
  EXPECT_EQ(find_lags(ring, 0, 6)[0], (std::vector<std::uint32_t>{0, 1, 2, 3}));
  // And with lags that it has no room for it does not end: what the test above runs is no
  // formality.
  EXPECT_EQ(run(ring, find_lags(ring, 0, 6), 2), "ranks wait for each other");
}

// Rank 2 takes rank 0's chunk straight, and by way of rank 1, in one step.
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

TEST(Lags, NoneWhereAListWouldHaveToChangeItsOrder) {
  Schedule schedule;
  schedule.collective = Collective::kSendRecv;
  schedule.num_ranks = 2;
  schedule.weight = {1};
  Step send_one;
  send_one.operands = {Operand::input()};
  send_one.send = {1};
  Step take_one;
  take_one.operands = {Operand::link(0)};
  take_one.write_output = true;
  Step send_other = send_one;
  send_other.send = {0};
  Step take_other = take_one;
  take_other.operands = {Operand::link(1)};
  // Rank 1 takes before it sends, rank 0 sends before it takes: rank 1's second step is of level 0.
  schedule.programs = {{{send_one, take_other}}, {{take_one, send_other}}};
  EXPECT_EQ(find_lags(schedule, 0, 8), (Lags{{0, 0}, {0, 0}}));
}

}  // namespace
}  // namespace ropewalk::schedule
