#include "schedule/compile.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "core/error.h"
#include "core/testing/share.h"
#include "schedule/check.h"
#include "schedule/layout.h"
#include "schedule/testing/hosts.h"
#include "schedule/testing/reference_run.h"
#include "schedule/text.h"

namespace ropewalk::schedule {
namespace {

/// Calls `body` for every request of up to `most_ranks` ranks and 3 channels.
template <typename Body>
void for_every_request(int most_ranks, Body&& body) {
  for (int c = 0; c < kNumCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    for (int ranks = 1; ranks <= most_ranks; ++ranks) {
      const int roots = has_root(collective) ? ranks : 1;
      for (int root = 0; root < roots; ++root) {
        for (int channels = 1; channels <= 3; ++channels) {
          body(Request{collective, ranks, root, channels});
        }
      }
    }
  }
}

/// The same with each algorithm that supports it, and for those that need hosts on all of these.
template <typename Body>
void for_every_supported(int most_ranks, Body&& body) {
  for_every_request(most_ranks, [&](const Request& request) {
    for (const Algorithm& algorithm : algorithms()) {
      for (const Request& placed : testing::with_hosts(algorithm, request)) body(algorithm, placed);
    }
  });
}

std::string describe(const Algorithm& algorithm, const Request& request) {
  return fmt::format("{} {} ranks={} root={} channels={} hosts={}", algorithm.name,
                     name(request.collective), request.num_ranks, request.root, request.channels,
                     fmt::join(request.host_of_rank, " "));
}

TEST(Compile, EveryScheduleIsAcceptedAlsoInPlace) {
  int checked = 0;
  const bool all = ropewalk::testing::share() == 1;
  for_every_supported(all ? 9 : 6, [&](const Algorithm& algorithm, const Request& request) {
    SCOPED_TRACE(describe(algorithm, request));
    const Schedule schedule = compile(algorithm.name, request);
    const CheckReport report = check(schedule, 2);
    ASSERT_TRUE(report.accepted) << report.defects.front() << "\n" << print(schedule);
    EXPECT_EQ(report.in_place, in_place_input_offset(request.collective, 0).has_value());
    EXPECT_EQ(schedule.algorithm, algorithm.name);
    EXPECT_GE(schedule.num_channels(), request.channels);
    EXPECT_EQ(parse(print(schedule)), schedule);
    ++checked;
  });
  EXPECT_GT(checked, all ? 2000 : 500);
}

TEST(Compile, EveryCollectiveHasAnAlgorithmForEveryNumberOfRanksAndRoot) {
  for_every_request(40, [&](const Request& request) {
    int supporting = 0;
    for (const Algorithm& algorithm : algorithms()) supporting += algorithm.supports(request);
    const int least = request.collective == Collective::kSendRecv ? 1 : 2;
    EXPECT_GE(supporting, least) << name(request.collective) << " " << request.num_ranks;
  });
}

TEST(Compile, EveryScheduleComputesItsCollective) {
  std::uint64_t seed = 1;
  ropewalk::testing::Share share;
  for_every_supported(9, [&](const Algorithm& algorithm, const Request& request) {
    if (share.next()) {
      const Schedule schedule = compile(algorithm.name, request);
      const CheckReport report = check(schedule, 2);
      // Nothing, one element, some parts empty, all parts, and several rounds with a rest.
      const auto parts = static_cast<std::size_t>(schedule.parts * schedule.num_channels());
      const std::size_t counts[] = {0, 1, parts > 1 ? parts - 1 : 2, parts + 1, 2 * parts + 7, 53};
      for (const std::size_t count : counts) {
        testing::RunOptions options;
        options.count = count;
        options.seed = ++seed;
        options.chunk = 1 + seed % 5;
        options.granule = 1 + seed % 3;
        options.slots = 2 + seed % 2;
        options.in_place = report.in_place && seed % 4 < 2;
        options.direct = seed % 3 == 0 ? nullptr : &report;
        const auto wrong = testing::wrong_effect(schedule, options);
        ASSERT_FALSE(wrong) << describe(algorithm, request) << " count=" << count
                            << " seed=" << options.seed << " in_place=" << options.in_place << ": "
                            << *wrong << "\n"
                            << print(schedule);
      }
    }
  });
}

TEST(Compile, ManyRanks) {
  for (const int ranks : {16, 31, 64, 65}) {
    for (int c = 0; c < kNumCollectives; ++c) {
      Request request{static_cast<Collective>(c), ranks, 0, 2};
      if (has_root(request.collective)) request.root = ranks / 3;
      for (const Algorithm& algorithm : algorithms()) {
        // Its forwarding makes ranks cubed messages; 31 ranks show it.
        if (request.collective == Collective::kAllToAll && algorithm.name == "ring" && ranks > 31) {
          continue;
        }
        for (const Request& placed : testing::with_hosts(algorithm, request)) {
          const CheckReport report = check(compile(algorithm.name, placed));
          ASSERT_TRUE(report.accepted) << describe(algorithm, placed) << report.defects.front();
        }
      }
    }
  }
}

TEST(Compile, TwoShotOfTwoRanksSwapsHalves) {
  EXPECT_EQ(print(compile("two_shot", {Collective::kAllReduce, 2, 0, 1})),
            "ropewalk-schedule 1\n"
            "collective all_reduce\n"
            "algorithm two_shot\n"
            "ranks 2\n"
            "parts 2\n"
            "channel 0 weight 1\n"
            "rank 0 channel 0\n"
            "  b1: in -> 1\n"
            "  b0: in + 1 => out, 1\n"
            "  b1: 1 -> out\n"
            "rank 1 channel 0\n"
            "  b0: in -> 0\n"
            "  b1: 0 + in => out, 0\n"
            "  b0: 0 -> out\n");
}

TEST(Compile, DoubleBinaryTreeSpreadsTheLoad) {
  // No rank sends or receives more than about the whole data, as in each broadcast half.
  for (const int ranks : {3, 4, 5, 8, 9, 16, 17}) {
    const CheckReport report =
        check(compile("double_binary_tree", {Collective::kBroadcast, ranks, 0, 2}));
    std::vector<double> sent(static_cast<std::size_t>(ranks));
    for (const LinkLoad& link : report.links) {
      sent[static_cast<std::size_t>(link.source)] += link.units;
    }
    for (const double units : sent) EXPECT_LE(units, 1.51) << ranks;
  }
}

void expect_refused(std::string_view algorithm, const Request& request, std::string_view words) {
  try {
    compile(algorithm, request);
    ADD_FAILURE() << "compiled";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    EXPECT_NE(std::string_view(error.what()).find(words), std::string_view::npos) << error.what();
  }
}

TEST(Compile, RefusesUnsupportedRequests) {
  expect_refused("rings", {Collective::kAllReduce, 2, 0, 1}, "ring, chain");
  expect_refused("two_shot", {Collective::kBroadcast, 4, 0, 1}, "those that have: ring, chain");
  expect_refused("recursive_doubling", {Collective::kReduceScatter, 6, 0, 1}, "6 ranks");
  expect_refused("ring", {Collective::kAllReduce, 0, 0, 1}, "0 ranks");
  expect_refused("ring", {Collective::kAllReduce, -1, 0, 1}, "-1 ranks");
  expect_refused("ring", {Collective::kAllReduce, 4, 0, 0}, "0 channels");
  expect_refused("chain", {Collective::kBroadcast, 4, 4, 1}, "root 4 among 4");
  expect_refused("ring", {Collective::kAllReduce, 4, 1, 1}, "has no root");
  expect_refused("one_shot", {Collective::kAllReduce, 65536, 0, 1}, "those that have: chain");
}

// Every collective of rings and chains, in an order: accepted by the checker, and over its
// neighbours alone.
TEST(CompileInOrder, UsesTheLinksOfTheOrderAlone) {
  const std::vector<int> order = {0, 1, 3, 2, 4};
  int compiled = 0;
  for (const char* algorithm : {"ring", "chain"}) {
    for (int c = 0; c < kNumCollectives; ++c) {
      for (const int root : {0, 3}) {
        const auto collective = static_cast<Collective>(c);
        if (root != 0 && !has_root(collective)) continue;
        const Request request{collective, 5, root, 2, order};
        const auto row = std::ranges::find(algorithms(), algorithm, &Algorithm::name);
        if (!row->supports(request)) continue;
        const Schedule schedule = compile(algorithm, request);
        EXPECT_TRUE(check(schedule).accepted) << algorithm << " " << name(collective);
        ++compiled;
        for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
          for (const StepList& steps : schedule.programs[rank]) {
            for (const Step& step : steps) {
              for (const int peer : step.send) {
                const auto at = std::ranges::find(order, static_cast<int>(rank)) - order.begin();
                const auto to = std::ranges::find(order, peer) - order.begin();
                EXPECT_TRUE(to == (at + 1) % 5 || at == (to + 1) % 5)
                    << algorithm << " " << name(collective) << ": " << rank << " to " << peer;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GE(compiled, 10);
}

// ---- hierarchical -----------------------------------------------------------------------

Request on_hosts(Collective collective, std::vector<int> host_of_rank, int root = 0) {
  return {collective, static_cast<int>(host_of_rank.size()), root, 1, {}, std::move(host_of_rank)};
}

TEST(CompileHierarchical, TwoHostsExchangeWholeShares) {
  EXPECT_EQ(print(compile("hierarchical", on_hosts(Collective::kAllReduce, {0, 1, 0, 1}))),
            "ropewalk-schedule 1\n"
            "collective all_reduce\n"
            "algorithm hierarchical\n"
            "ranks 4\n"
            "parts 2\n"
            "channel 0 weight 1\n"
            "rank 0 channel 0\n"
            "  b1: in -> 2\n"
            "  b0: in + 2 -> out, 1\n"
            "  b0: out + 1 => out, 2\n"
            "  b1: 2 -> out\n"
            "rank 1 channel 0\n"
            "  b1: in -> 3\n"
            "  b0: in + 3 -> out, 0\n"
            "  b0: 0 + out => out, 3\n"
            "  b1: 3 -> out\n"
            "rank 2 channel 0\n"
            "  b0: in -> 0\n"
            "  b1: 0 + in -> out, 3\n"
            "  b1: out + 3 => out, 0\n"
            "  b0: 0 -> out\n"
            "rank 3 channel 0\n"
            "  b0: in -> 1\n"
            "  b1: 1 + in -> out, 2\n"
            "  b1: 2 + out => out, 1\n"
            "  b0: 1 -> out\n");
}

// What leaves a rank's host, and how many hops there are.
TEST(CompileHierarchical, SendsTheLeastOutOfEachHostAndEquallyByItsRanks) {
  for (const auto& [hosts, each] :
       {std::pair(2, 2), std::pair(2, 4), std::pair(3, 2), std::pair(4, 4), std::pair(5, 3)}) {
    for (const bool in_turn : {false, true}) {
      const std::vector<int> host_of_rank = testing::equal_hosts(hosts, each, in_turn);
      const double all_but_one = hosts - 1;
      const std::pair<Collective, double> expected[] = {
          {Collective::kAllReduce, 2 * all_but_one / hosts / each},
          {Collective::kReduceScatter, all_but_one},
          {Collective::kAllGather, all_but_one},
      };
      for (const auto& [collective, units] : expected) {
        const CheckReport report =
            check(compile("hierarchical", on_hosts(collective, host_of_rank)));
        ASSERT_TRUE(report.accepted) << report.defects.front();
        std::vector<double> out(host_of_rank.size());
        for (const LinkLoad& link : report.links) {
          const auto from = static_cast<std::size_t>(link.source);
          const auto to = static_cast<std::size_t>(link.destination);
          if (host_of_rank[from] == host_of_rank[to]) continue;
          out[from] += link.units;
        }
        for (const double sent : out) {
          EXPECT_NEAR(sent, units, 1e-12) << name(collective) << " " << hosts << "x" << each;
        }
        const bool both = collective == Collective::kAllReduce;
        const int half = 1 + hosts / 2;  // every second host's chunks wait for the one before
        const int hops = both ? (hosts == 2 ? 3 : 2 * half) : half;
        EXPECT_EQ(report.longest_path, hops) << name(collective) << " " << hosts << "x" << each;
      }
    }
  }
}

TEST(CompileHierarchical, ABroadcastLeavesEachHostOnce) {
  for (const int root : {0, 3, 7}) {
    const std::vector<int> host_of_rank = testing::equal_hosts(4, 3, true);
    const CheckReport report =
        check(compile("hierarchical", on_hosts(Collective::kBroadcast, host_of_rank, root)));
    ASSERT_TRUE(report.accepted) << report.defects.front();
    std::vector<double> out(4);
    for (const LinkLoad& link : report.links) {
      const int from = host_of_rank[static_cast<std::size_t>(link.source)];
      if (from != host_of_rank[static_cast<std::size_t>(link.destination)]) {
        out[static_cast<std::size_t>(from)] += link.units;
      }
    }
    const auto last = static_cast<std::size_t>((root % 4 + 3) % 4);
    for (std::size_t host = 0; host < 4; ++host) {
      EXPECT_NEAR(out[host], host == last ? 0 : 1, 1e-12) << "root " << root << " host " << host;
    }
    EXPECT_EQ(report.longest_path, 5);
  }
}

TEST(CompileHierarchical, AReduceGoesThroughTheRootsHost) {
  EXPECT_EQ(print(compile("hierarchical", on_hosts(Collective::kReduce, {0, 1, 0, 1}, 2))),
            "ropewalk-schedule 1\n"
            "collective reduce\n"
            "algorithm hierarchical\n"
            "ranks 4\n"
            "root 2\n"
            "parts 2\n"
            "channel 0 weight 1\n"
            "rank 0 channel 0\n"
            "  b1: in -> 2\n"
            "  b0: in + 2 + 1 => 2\n"
            "rank 1 channel 0\n"
            "  b1: in -> 3\n"
            "  b0: in + 3 -> 0\n"
            "rank 2 channel 0\n"
            "  b0: in -> 0\n"
            "  b1: 0 + in + 3 => out\n"
            "  b0: 0 -> out\n"
            "rank 3 channel 0\n"
            "  b0: in -> 1\n"
            "  b1: 1 + in -> 2\n");
}

// Every root, ranks one after the other and dealt out, with links of two chunks.
TEST(CompileHierarchical, AReduceLeavesEachHostOnceOverAllOfItsRanks) {
  const std::vector<std::pair<int, int>> sizes = {{2, 2}, {2, 4}, {3, 2}, {4, 4}, {2, 8}, {8, 2}};
  for (const auto& [hosts, each] : sizes) {
    for (const bool in_turn : {false, true}) {
      const std::vector<int> host_of_rank = testing::equal_hosts(hosts, each, in_turn);
      for (int root = 0; root < hosts * each; ++root) {
        SCOPED_TRACE(fmt::format("{}x{} in_turn={} root={}", hosts, each, in_turn, root));
        Request request = on_hosts(Collective::kReduce, host_of_rank, root);
        request.channels = 2;
        const CheckReport report = check(compile("hierarchical", request), 2);
        ASSERT_TRUE(report.accepted) << report.defects.front();
        std::vector<double> leaves(host_of_rank.size());
        double into_root = 0;
        for (const LinkLoad& link : report.links) {
          const auto from = static_cast<std::size_t>(link.source);
          const auto to = static_cast<std::size_t>(link.destination);
          if (host_of_rank[from] != host_of_rank[to]) leaves[from] += link.units;
          if (link.destination == root) into_root += link.units;
        }
        const int root_host = host_of_rank[static_cast<std::size_t>(root)];
        for (std::size_t rank = 0; rank < leaves.size(); ++rank) {
          EXPECT_NEAR(leaves[rank], host_of_rank[rank] == root_host ? 0 : 1.0 / each, 1e-12);
        }
        EXPECT_LT(into_root, 2);
        EXPECT_EQ(report.longest_path, hosts + 1);
      }
    }
  }
  // A rank on each host: nothing is to be shared out within one.
  for (const std::vector<int>& hosts : {std::vector<int>{0, 1}, std::vector<int>{0, 1, 2}}) {
    expect_refused("hierarchical", on_hosts(Collective::kReduce, hosts), "it needs at least two");
  }
}

// Hosts with unequally many ranks: whatever their order, one after the other and dealt out.
std::vector<int> unequal_hosts(const std::vector<int>& ranks_on, bool in_turn) {
  std::vector<int> host_of_rank;
  for (int index = 0; index < std::ranges::max(ranks_on); ++index) {
    for (std::size_t host = 0; host < ranks_on.size(); ++host) {
      if (index < ranks_on[host]) host_of_rank.push_back(static_cast<int>(host));
    }
  }
  if (!in_turn) std::ranges::sort(host_of_rank);
  return host_of_rank;
}

TEST(CompileHierarchical, ServesHostsWithUnequallyManyRanks) {
  const std::vector<std::vector<int>> machines = {{2, 1},    {1, 2},    {3, 1},       {1, 8},
                                                  {3, 2},    {2, 4},    {5, 2},       {7, 3},
                                                  {2, 1, 1}, {1, 3, 2}, {4, 3, 2, 1}, {1, 1, 6, 1}};
  for (const std::vector<int>& ranks_on : machines) {
    for (const bool in_turn : {false, true}) {
      const std::vector<int> hosts = unequal_hosts(ranks_on, in_turn);
      const auto ranks = static_cast<int>(hosts.size());
      for (const Collective collective :
           {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
            Collective::kBroadcast, Collective::kReduce}) {
        for (int root = 0; root < (has_root(collective) ? ranks : 1); ++root) {
          SCOPED_TRACE(fmt::format("{} {} in_turn={} root={}", name(collective),
                                   fmt::join(ranks_on, "+"), in_turn, root));
          Request request = on_hosts(collective, hosts, root);
          request.channels = 2;
          const CheckReport report = check(compile("hierarchical", request), 2);
          ASSERT_TRUE(report.accepted) << report.defects.front();
        }
      }
    }
  }
}

// Out of each host goes as much as where hosts have equally many ranks, spread over the ranks of
// the host that has more.
TEST(CompileHierarchical, SendsNoMoreBetweenUnequalHosts) {
  const std::vector<int> hosts = {0, 0, 1};
  const auto out_of = [&](Collective collective, int root) {
    const CheckReport report = check(compile("hierarchical", on_hosts(collective, hosts, root)));
    EXPECT_TRUE(report.accepted);
    std::vector<double> out(3);
    for (const LinkLoad& link : report.links) {
      const auto from = static_cast<std::size_t>(link.source);
      if (hosts[from] != hosts[static_cast<std::size_t>(link.destination)]) out[from] += link.units;
    }
    return out;
  };
  EXPECT_EQ(out_of(Collective::kAllReduce, 0), (std::vector<double>{0.5, 0.5, 1}));
  EXPECT_EQ(out_of(Collective::kBroadcast, 0), (std::vector<double>{0.5, 0.5, 0}));
  EXPECT_EQ(out_of(Collective::kBroadcast, 2), (std::vector<double>{0, 0, 1}));
  EXPECT_EQ(out_of(Collective::kReduce, 2), (std::vector<double>{0.5, 0.5, 0}));
  EXPECT_EQ(out_of(Collective::kReduce, 1), (std::vector<double>{0, 0, 1}));
  // Of the two blocks of one host the other sends both, and gets one.
  EXPECT_EQ(out_of(Collective::kReduceScatter, 0), (std::vector<double>{1, 0, 2}));
  EXPECT_EQ(out_of(Collective::kAllGather, 0), (std::vector<double>{1, 1, 1}));
}

TEST(CompileHierarchical, RefusesHostsWithNothingToDoWithin) {
  const char* const why = "it needs at least two hosts, and on one of them at least two ranks";
  for (const std::vector<int>& hosts :
       {std::vector<int>{}, std::vector<int>{0, 0, 0, 0}, std::vector<int>{0, 1, 2, 3},
        std::vector<int>{0, 0, 2, 2}}) {
    expect_refused("hierarchical", {Collective::kAllReduce, 4, 0, 1, {}, hosts}, why);
  }
  expect_refused("hierarchical", on_hosts(Collective::kGather, {0, 0, 1, 1}), "those that have");
  for (const std::vector<int>& hosts :
       {std::vector<int>{0, 0, 1}, std::vector<int>{0, 0, -1, -1}, std::vector<int>{0, 0, 4, 4}}) {
    expect_refused("ring", {Collective::kAllReduce, 4, 0, 1, {}, hosts}, "one for each of 4 ranks");
  }
}

// Whom each rank sends to in step `k` of each channel.
std::vector<std::vector<int>> receivers(const Schedule& schedule, std::size_t k) {
  std::vector<std::vector<int>> of_channel(static_cast<std::size_t>(schedule.num_channels()));
  for (const auto& rank : schedule.programs) {
    for (std::size_t c = 0; c < rank.size(); ++c) of_channel[c].push_back(rank[c][k].send.front());
  }
  return of_channel;
}

// At any step the ranks send to different ones on each channel, and so does one rank on its
// channels.
TEST(CompileExchange, ChannelsTakePeersInOrdersOfTheirOwn) {
  const std::vector<std::pair<const char*, Collective>> exchanges = {
      {"direct", Collective::kAllToAll},
      {"one_shot", Collective::kReduceScatter},
      {"two_shot", Collective::kAllReduce}};
  for (const auto& [algorithm, collective] : exchanges) {
    const Schedule schedule = compile(algorithm, {collective, 4, 0, 5});
    EXPECT_TRUE(check(schedule).accepted) << algorithm;
    for (std::size_t k = 0; k < 3; ++k) {
      const auto at_once = receivers(schedule, k);
      for (std::vector<int> channel : at_once) {
        std::ranges::sort(channel);
        EXPECT_EQ(channel, (std::vector<int>{0, 1, 2, 3})) << algorithm;
      }
      EXPECT_NE(at_once[0][0], at_once[1][0]) << algorithm;
      EXPECT_NE(at_once[1][0], at_once[2][0]) << algorithm;
      EXPECT_NE(at_once[0][0], at_once[2][0]) << algorithm;
      EXPECT_EQ(at_once[0], at_once[3]) << algorithm;
    }
  }
}

TEST(CompileInOrder, RefusesWhatIsNone) {
  for (const std::vector<int>& order :
       {std::vector<int>{0, 1}, std::vector<int>{0, 1, 1}, std::vector<int>{0, 1, 3}}) {
    EXPECT_THROW(compile("ring", {Collective::kAllReduce, 3, 0, 1, order}), Error);
  }
}

}  // namespace
}  // namespace ropewalk::schedule
