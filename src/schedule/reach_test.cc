#include "schedule/reach.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "core/testing/share.h"
#include "schedule/compile.h"
#include "schedule/from_plan.h"
#include "schedule/lags.h"
#include "schedule/layout.h"
#include "schedule/testing/hosts.h"
#include "schedule/testing/random_plans.h"

namespace ropewalk::schedule {
namespace {

constexpr std::size_t kCount = 4096;
constexpr std::size_t kGranule = 4;
constexpr std::uint32_t kSlots = 9;
constexpr std::uint32_t kRounds = 3;

Schedule made(const char* algorithm, Collective collective, int ranks, int root, int channels = 1) {
  return compile(algorithm, {collective, ranks, root, channels});
}

// One rank's steps of a channel in the order in which executors run them: (round, step).
using Order = std::vector<std::pair<std::uint32_t, std::size_t>>;

Order order_of(const std::vector<std::uint32_t>& lags) {
  const std::uint32_t last = lags.empty() ? 0 : *std::ranges::max_element(lags);
  Order order;
  for (std::uint32_t turn = 0; turn < kRounds + last; ++turn) {
    for (std::size_t s = 0; s < lags.size(); ++s) {
      if (turn >= lags[s] && turn - lags[s] < kRounds) order.emplace_back(turn - lags[s], s);
    }
  }
  return order;
}

// What notes do in a call (comm/agreed_chunks.h): `teller` has one, a rank that receives one has it
// from then on, whatever the block and channel, and every chunk brings what its sender has then.
// The strands of all ranks make progress in a random order.
// @return the ranks that have it at the end
std::vector<int> told(const Schedule& schedule, int teller, bool lagging, unsigned seed) {
  const auto ranks = static_cast<std::size_t>(schedule.num_ranks);
  const auto channels = static_cast<std::size_t>(schedule.num_channels());
  std::vector<bool> knows(ranks);
  knows[static_cast<std::size_t>(teller)] = true;
  struct Strand {
    std::size_t rank;
    std::size_t channel;
    Order order;
    std::size_t at = 0;
  };
  std::vector<Strand> strands;
  for (std::size_t c = 0; c < channels; ++c) {
    auto lags = find_lags(schedule, static_cast<int>(c), lagging ? kSlots : 1);
    for (std::size_t r = 0; r < ranks; ++r) {
      strands.push_back({r, c, order_of(lags[r])});
    }
  }
  std::map<std::tuple<std::size_t, int, int>, std::deque<bool>> links;
  std::minstd_rand dice(seed);
  std::size_t left = strands.size();
  while (left > 0) {
    Strand& strand = strands[dice() % strands.size()];
    if (strand.at == strand.order.size()) {
      left = static_cast<std::size_t>(std::ranges::count_if(
          strands, [](const Strand& each) { return each.at < each.order.size(); }));
      continue;
    }
    const int rank = static_cast<int>(strand.rank);
    const Step& step =
        schedule.programs[strand.rank][strand.channel][strand.order[strand.at].second];
    const bool ready = std::ranges::all_of(step.operands, [&](const Operand& operand) {
      return operand.kind != Operand::Kind::kLink ||
             !links[{strand.channel, operand.peer, rank}].empty();
    });
    if (!ready) continue;
    for (const Operand& operand : step.operands) {
      if (operand.kind != Operand::Kind::kLink) continue;
      std::deque<bool>& link = links[{strand.channel, operand.peer, rank}];
      if (link.front()) knows[strand.rank] = true;
      link.pop_front();
    }
    for (const int to : step.send) {
      links[{strand.channel, rank, to}].push_back(knows[strand.rank]);
    }
    ++strand.at;
  }
  std::vector<int> those;
  for (std::size_t r = 0; r < ranks; ++r) {
    if (knows[r]) those.push_back(static_cast<int>(r));
  }
  return those;
}

TEST(Reach, EachRankThatIsHeardByAllTellsAllInAnyOrderOfProgress) {
  ropewalk::testing::Share share;
  int heard = 0;
  for (const Algorithm& algorithm : algorithms()) {
    for (int c = 0; c < kNumCollectives; ++c) {
      for (int ranks = 2; ranks <= 6; ++ranks) {
        const auto collective = static_cast<Collective>(c);
        for (int root = 0; root < (has_root(collective) ? ranks : 1); ++root) {
          for (const int channels : {1, 3}) {
            const Request request{collective, ranks, root, channels};
            for (const Request& placed : testing::with_hosts(algorithm, request)) {
              if (!share.next()) continue;
              const Schedule schedule = compile(algorithm.name, placed);
              std::vector<int> everyone(static_cast<std::size_t>(ranks));
              std::iota(everyone.begin(), everyone.end(), 0);
              for (const int teller : heard_by_all(schedule, kCount, kGranule)) {
                ++heard;
                for (const bool lagging : {false, true}) {
                  EXPECT_EQ(told(schedule, teller, lagging, static_cast<unsigned>(heard)), everyone)
                      << algorithm.name << " " << name(collective) << " of " << ranks
                      << " ranks, root " << root << ", " << channels << " channels: " << teller;
                }
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(heard, ropewalk::testing::share() > 1 ? 10 : 1000);
}

TEST(Reach, TreesOfRandomPlansTellAllToo) {
  unsigned seed = 0;
  int reduces = 0;
  testing::for_every_plan([&](const plan::Plan& plan) {
    const Schedule schedule = from_plan(plan).schedule;
    std::vector<int> everyone(static_cast<std::size_t>(schedule.num_ranks));
    std::iota(everyone.begin(), everyone.end(), 0);
    const std::vector<int> heard = heard_by_all(schedule, kCount, kGranule);
    for (const int teller : heard) {
      ++seed;
      EXPECT_EQ(told(schedule, teller, seed % 2 == 0, seed), everyone)
          << name(schedule.collective) << " of " << schedule.num_ranks << ": " << teller;
    }
    if (schedule.collective == Collective::kReduce) {
      reduces += heard.empty() ? 0 : 1;
    } else if (has_root(schedule.collective)) {
      EXPECT_THAT(heard, ::testing::Contains(schedule.root));
    } else {
      EXPECT_EQ(heard, everyone) << name(schedule.collective);
    }
  });
  EXPECT_GT(reduces, 0);
}

TEST(Reach, EveryoneHearsOfEachRankWhereOutputsHaveDataOfAll) {
  for (const Algorithm& algorithm : algorithms()) {
    for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather,
                                        Collective::kReduceScatter, Collective::kAllToAll}) {
      for (int ranks = 2; ranks <= 7; ++ranks) {
        const Request request{collective, ranks, 0, 2};
        for (const Request& placed : testing::with_hosts(algorithm, request)) {
          const Schedule schedule = compile(algorithm.name, placed);
          EXPECT_EQ(heard_by_all(schedule, kCount, kGranule).size(),
                    static_cast<std::size_t>(ranks))
              << algorithm.name << " " << name(collective) << " of " << ranks;
        }
      }
    }
  }
}

TEST(Reach, EveryoneHearsOfTheRootThatHasTheData) {
  for (const Algorithm& algorithm : algorithms()) {
    for (const Collective collective : {Collective::kBroadcast, Collective::kScatter}) {
      for (int ranks = 2; ranks <= 7; ++ranks) {
        const Request request{collective, ranks, ranks / 2, 2};
        for (const Request& placed : testing::with_hosts(algorithm, request)) {
          EXPECT_THAT(heard_by_all(compile(algorithm.name, placed), kCount, kGranule),
                      ::testing::Contains(ranks / 2))
              << algorithm.name << " " << name(collective) << " of " << ranks;
        }
      }
    }
  }
}

TEST(Reach, AReduceByAChainHasOneSourceAndATreeHasNone) {
  for (int root = 0; root < 4; ++root) {
    const int farthest = (root + 3) % 4;
    EXPECT_THAT(heard_by_all(made("chain", Collective::kReduce, 4, root), kCount, kGranule),
                ::testing::ElementsAre(farthest));
    EXPECT_THAT(heard_by_all(made("chain", Collective::kGather, 4, root), kCount, kGranule),
                ::testing::ElementsAre(farthest));
    EXPECT_THAT(heard_by_all(made("binary_tree", Collective::kReduce, 4, root), kCount, kGranule),
                ::testing::IsEmpty());
    EXPECT_THAT(
        heard_by_all(made("double_binary_tree", Collective::kReduce, 9, root), kCount, kGranule),
        ::testing::IsEmpty());
    EXPECT_THAT(heard_by_all(made("direct", Collective::kGather, 4, root), kCount, kGranule),
                ::testing::IsEmpty());
  }
  // Of two ranks the other one.
  EXPECT_THAT(heard_by_all(made("direct", Collective::kReduce, 2, 1), kCount, kGranule),
              ::testing::ElementsAre(0));
}

TEST(Reach, EmptyPartsBringNothing) {
  // Rank 0 sends the first part to rank 1, and the second one to rank 2.
  Schedule halves;
  halves.collective = Collective::kBroadcast;
  halves.num_ranks = 3;
  halves.parts = 2;
  halves.weight = {1};
  halves.programs = {
      {{{0, {Operand::input()}, true, false, {1}}, {1, {Operand::input()}, true, false, {2}}}},
      {{{0, {Operand::link(0)}, true, false, {}}}},
      {{{1, {Operand::link(0)}, true, false, {}}}}};
  EXPECT_THAT(heard_by_all(halves, kCount, kGranule), ::testing::ElementsAre(0));
  EXPECT_THAT(heard_by_all(halves, kGranule, kGranule), ::testing::IsEmpty());
  EXPECT_THAT(heard_by_all(halves, 0, kGranule), ::testing::IsEmpty());
}

}  // namespace
}  // namespace ropewalk::schedule
