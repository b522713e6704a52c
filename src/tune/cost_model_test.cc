// The tuner's choices by the cost model, with the built-in constants: they must agree with
// measurements (benchmarks/results, peers).
#include "tune/cost_model.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "core/error.h"
#include "schedule/testing/hosts.h"
#include "tune/tuner.h"

namespace ropewalk::tune {
namespace {

// What `ranks` choose for units of `bytes`.
Choice choice(Collective collective, std::size_t bytes, const GroupFacts& facts) {
  const Config config = Config::load();
  schedule::CheckedSchedules schedules;
  Tuner tuner = host_tuner(config, facts, {}, schedules);
  return *tuner.choose(collective, 0, bytes);
}

GroupFacts on_hosts(int ranks, double ranks_per_processor) {
  GroupFacts facts;
  facts.num_ranks = facts.num_hosts = ranks;
  facts.ranks_per_processor = ranks_per_processor;
  facts.slot_bytes = 64 << 10;
  return facts;
}

// On machines of their own the ranks wait for the network, and one hop is best.
TEST(CostModel, BetweenHostsShortMessagesTakeFewHops) {
  const GroupFacts apart = on_hosts(4, 0.5);
  EXPECT_EQ(choice(Collective::kAllReduce, 8, apart).algorithm, "one_shot");
  EXPECT_EQ(choice(Collective::kBroadcast, 8, apart).algorithm, "direct");
}

// On shared cores they wait for each other's work, and few messages are best.
TEST(CostModel, WhereHostsShareCoresFewMessagesAreBest) {
  const GroupFacts crowded = on_hosts(4, 2);
  for (const std::size_t bytes : {8UL, 512UL, 4096UL}) {
    EXPECT_EQ(choice(Collective::kAllReduce, bytes, crowded).algorithm, "recursive_doubling");
    EXPECT_EQ(choice(Collective::kBroadcast, bytes, crowded).algorithm, "binary_tree");
  }
  // Those that only send have done so before the root looks.
  EXPECT_EQ(choice(Collective::kReduce, 8, crowded).algorithm, "direct");
  EXPECT_NE(choice(Collective::kAllReduce, std::size_t{4} << 20, crowded).algorithm,
            "recursive_doubling");
}

// A root that sends to many is busy longer than a tree takes.
TEST(CostModel, ARootWhoseMessagesAreDearSendsDownATree) {
  MachineConstants constants;
  constants.network_message = 1e-4;
  const Config config = Config::load();
  schedule::CheckedSchedules schedules;
  Tuner tuner = host_tuner(config, on_hosts(32, 0.5), constants, schedules);
  const std::string algorithm = tuner.choose(Collective::kBroadcast, 0, 8)->algorithm;
  EXPECT_NE(algorithm.find("binary_tree"), std::string::npos) << algorithm;
}

TEST(CostModel, LongMessagesBetweenHostsFillTheirSlots) {
  for (const double shared : {0.5, 2.0}) {
    EXPECT_GE(choice(Collective::kAllToAll, std::size_t{2} << 20, on_hosts(4, shared)).chunk_bytes,
              std::size_t{16} << 10);
  }
}

// Halves of a short message cost more than they hide.
// Two hosts of a rank each, whose NICs carry this much.
GroupFacts over_rails(std::vector<double> rates) {
  GroupFacts facts = on_hosts(2, 0.5);
  facts.host_of_rank = {0, 1};
  facts.rail_rates = std::move(rates);
  return facts;
}

// Chunks of a whole slot are for long messages: of others there would be too few to fill a
// pipeline.
TEST(CostModel, OnlyLongMessagesTakeChunksOfAWholeSlot) {
  GroupFacts facts = on_hosts(2, 0.5);
  facts.slot_bytes = 128 << 10;
  facts.chunk_bytes = 64 << 10;
  for (const std::size_t bytes : {std::size_t{64} << 10, std::size_t{512} << 10}) {
    EXPECT_LE(choice(Collective::kAllReduce, bytes, facts).chunk_bytes, facts.chunk_bytes) << bytes;
  }
  EXPECT_EQ(choice(Collective::kAllReduce, std::size_t{16} << 20, facts).chunk_bytes,
            facts.slot_bytes);
  facts.chunk_bytes = 0;
  EXPECT_EQ(choice(Collective::kAllReduce, std::size_t{16} << 20, facts).chunk_bytes,
            facts.slot_bytes);
}

TEST(CostModel, LongMessagesTakeAllNicsAndShortOnesOne) {
  const GroupFacts facts = over_rails({1e8, 1e8, 1e8, 1e8});
  for (const Collective collective : {Collective::kAllReduce, Collective::kBroadcast,
                                      Collective::kAllGather, Collective::kAllToAll}) {
    EXPECT_EQ(choice(collective, 16 << 20, facts).channels, 4) << name(collective);
    EXPECT_EQ(choice(collective, 8, facts).channels, 1) << name(collective);
  }
}

TEST(CostModel, UnequalNicsAreLoadedByTheirRates) {
  const Choice chosen = choice(Collective::kAllReduce, 16 << 20, over_rails({4e7, 4e7, 2e7, 1e7}));
  ASSERT_NE(chosen.routed, nullptr);
  EXPECT_EQ(chosen.routed->checked->schedule().weight, (std::vector<int>{4, 4, 2, 1}));
  // Of two ranks each sends as much as it has.
  EXPECT_NEAR(chosen.predicted_seconds, (16 << 20) / 11e7, 0.1 * (16 << 20) / 11e7);
}

TEST(CostModel, EqualNicsNeedNoWeights) {
  EXPECT_EQ(choice(Collective::kAllReduce, 16 << 20, over_rails({1e8, 95e6})).routed, nullptr);
}

TEST(CostModel, GivenChannelsAreSpreadByWeight) {
  const auto weights = [](const char* channels) {
    Config config = Config::load();
    config.set("CHANNELS", channels, "test");
    schedule::CheckedSchedules schedules;
    Tuner tuner = host_tuner(config, over_rails({4e8, 2e8}), {}, schedules);
    const Choice chosen = *tuner.choose(Collective::kBroadcast, 0, 8);
    EXPECT_EQ(std::to_string(chosen.channels), channels);
    return chosen.routed == nullptr ? std::vector<int>()
                                    : chosen.routed->checked->schedule().weight;
  };
  EXPECT_EQ(weights("2"), (std::vector<int>{2, 1}));
  EXPECT_EQ(weights("3"), std::vector<int>());  // two of them share the faster one
  EXPECT_EQ(weights("4"), (std::vector<int>{2, 1, 2, 1}));
}

TEST(CostModel, WhomARankSendsToOrReceivesFromIsCountedByChannel) {
  schedule::CheckedSchedules schedules;
  const auto fan = [&](const char* algorithm, Collective collective, int channels) {
    return ScheduleShape::of(*schedules.get(algorithm, {collective, 4, 0, channels})).fan;
  };
  EXPECT_EQ(fan("ring", Collective::kAllReduce, 2), 1);
  EXPECT_EQ(fan("two_shot", Collective::kAllReduce, 2), 3);
  EXPECT_EQ(fan("chain", Collective::kBroadcast, 1), 1);
  EXPECT_EQ(fan("double_binary_tree", Collective::kReduce, 2), 2);
  EXPECT_TRUE(ScheduleShape::of(*schedules.get("chain", {Collective::kReduce, 4, 0, 1})).rooted);
  EXPECT_FALSE(ScheduleShape::of(*schedules.get("ring", {Collective::kAllReduce, 4, 0, 1})).rooted);
}

TEST(CostModel, WhatLeavesAHostIsCountedAsDataAndAsHops) {
  schedule::CheckedSchedules schedules;
  const std::vector<int> hosts = schedule::testing::equal_hosts(2, 4);
  const auto shape = [&](const char* algorithm) {
    return ScheduleShape::of(
        *schedules.get(algorithm, {Collective::kAllReduce, 8, 0, 1, {}, hosts}), hosts);
  };
  const ScheduleShape ring = shape("ring");
  EXPECT_DOUBLE_EQ(ring.leaving_units, 14.0 / 8);
  EXPECT_EQ(ring.longest_path, 14);
  EXPECT_EQ(ring.local_path, 10);  // 14 hops around two hosts cross between them 4 times at most
  EXPECT_EQ(ring.all.local_out, 14 * 6);
  EXPECT_EQ(ring.all.local_combined_in + ring.all.local_copied_in, 14 * 6);
  const ScheduleShape hierarchical = shape("hierarchical");
  EXPECT_DOUBLE_EQ(hierarchical.leaving_units, 1);
  EXPECT_EQ(hierarchical.longest_path, 3);
  EXPECT_EQ(hierarchical.local_path, 2);
  EXPECT_EQ(hierarchical.all.messages_out - hierarchical.all.local_out, 8);
  const ScheduleShape two_shot = shape("two_shot");
  EXPECT_DOUBLE_EQ(two_shot.leaving_units, 4);
  EXPECT_EQ(two_shot.local_path, 0);
  // Hosts that are not known.
  EXPECT_EQ(ScheduleShape::of(*schedules.get("ring", {Collective::kAllReduce, 8, 0, 1})).local_path,
            0);
}

// Of four ranks the second exchange of an all-gather by recursive doubling is two blocks to the
// same rank. In a ring each block waits for one that has come.
TEST(CostModel, MessagesThatFollowEachOtherOverALinkAreCounted) {
  schedule::CheckedSchedules schedules;
  const auto all = [&](const char* algorithm, int ranks, std::vector<int> hosts) {
    return ScheduleShape::of(*schedules.get(algorithm, {Collective::kAllGather, ranks, 0, 1}),
                             hosts)
        .all;
  };
  const RankLoad doubling = all("recursive_doubling", 4, {0, 1, 2, 3});
  EXPECT_EQ(doubling.messages_out, 4 * 3);
  EXPECT_EQ(doubling.joined_out, 4 * 1);
  EXPECT_EQ(doubling.joined_in, 4 * 1);
  // Of eight the third exchange is two times two blocks, since links of two chunks must do.
  EXPECT_EQ(all("recursive_doubling", 8, {0, 1, 2, 3, 4, 5, 6, 7}).joined_out, 8 * (1 + 2));
  for (const char* algorithm : {"ring", "one_shot"}) {
    EXPECT_EQ(all(algorithm, 4, {0, 1, 2, 3}).joined_out, 0) << algorithm;
  }
  // Within a host nothing is joined.
  EXPECT_EQ(all("recursive_doubling", 4, {0, 1, 0, 1}).joined_out, 0);
  EXPECT_EQ(all("recursive_doubling", 4, {}).joined_out, 0);
}

// A message costs 0.65 of the latency, so that beside the first each is much.
TEST(CostModel, WhereMessagesJoinShortAllGathersTakeTwoRoundsInsteadOfThreeMessages) {
  MachineConstants constants;
  constants.network_latency = 7e-6;
  constants.network_message = 4.55e-6;
  const auto algorithm = [&](bool joins) {
    GroupFacts facts = on_hosts(4, 0.5);
    facts.host_of_rank = {0, 1, 2, 3};
    facts.joined_bytes = joins ? 64 << 10 : 0;
    schedule::CheckedSchedules schedules;
    return host_tuner(Config::load(), facts, constants, schedules)
        .choose(Collective::kAllGather, 0, 64)
        ->algorithm;
  };
  EXPECT_EQ(algorithm(true), "recursive_doubling");
  EXPECT_EQ(algorithm(false), "one_shot");
}

// The root of a direct broadcast sends three messages, and that of a tree two: alone the first ends
// sooner, among others the second costs less.
TEST(CostModel, CallsWithARootOverlapWhereMessagesCostAsMuchAsLatency) {
  MachineConstants constants;
  constants.network_latency = 8.3e-6;
  constants.network_message = 5.4e-6;
  schedule::CheckedSchedules schedules;
  GroupFacts facts = on_hosts(4, 0.5);
  facts.host_of_rank = {0, 1, 2, 3};
  facts.joined_bytes = 64 << 10;
  Tuner tuner = host_tuner(Config::load(), facts, constants, schedules);
  for (const std::size_t bytes : {8UL, 512UL, 4096UL}) {
    EXPECT_EQ(tuner.choose(Collective::kBroadcast, 0, bytes)->algorithm, "binary_tree");
    EXPECT_EQ(tuner.choose(Collective::kReduce, 0, bytes)->algorithm, "direct");
    EXPECT_EQ(tuner.choose(Collective::kScatter, 0, bytes)->algorithm, "binary_tree");
    EXPECT_EQ(tuner.choose(Collective::kGather, 0, bytes)->algorithm, "direct");
  }
}

// Within a host a short message costs its sender a line that comes back from its reader; what a
// root receives it reads all at once.
TEST(CostModel, ShortBroadcastsOfRanksWithACoreEachGoDownATree) {
  MachineConstants constants;
  constants.hop_latency = 1.3e-7;
  for (const int ranks : {4, 8}) {
    GroupFacts facts;
    facts.num_ranks = facts.max_ranks_per_host = ranks;
    const auto algorithm = [&](Collective collective, std::size_t bytes) {
      schedule::CheckedSchedules schedules;
      Tuner tuner = host_tuner(Config::load(), facts, constants, schedules);
      return tuner.choose(collective, 0, bytes)->algorithm;
    };
    for (const std::size_t bytes : {8UL, 64UL, 512UL, 1024UL}) {
      EXPECT_EQ(algorithm(Collective::kBroadcast, bytes), "binary_tree") << ranks << " " << bytes;
    }
    EXPECT_EQ(algorithm(Collective::kReduce, 8), "direct") << ranks;
  }
}

// Eight ranks on two hosts.
GroupFacts on_two_hosts(std::vector<int> host_of_rank) {
  GroupFacts facts = on_hosts(8, 0.5);
  facts.num_hosts = 2;
  facts.max_ranks_per_host = 4;
  facts.host_of_rank = std::move(host_of_rank);
  return facts;
}

TEST(CostModel, LongAllReducesOverEqualHostsAreHierarchical) {
  for (const bool in_turn : {false, true}) {
    const GroupFacts facts = on_two_hosts(schedule::testing::equal_hosts(2, 4, in_turn));
    EXPECT_EQ(choice(Collective::kAllReduce, 16 << 20, facts).algorithm, "hierarchical");
    EXPECT_EQ(choice(Collective::kReduce, 16 << 20, facts).algorithm, "hierarchical");
    if (in_turn) continue;  // as little leaves hosts by recursive doubling there
    EXPECT_EQ(choice(Collective::kReduceScatter, 1 << 20, facts).algorithm, "hierarchical");
    EXPECT_EQ(choice(Collective::kAllGather, 1 << 20, facts).algorithm, "hierarchical");
  }
}

// Those of unequal hosts are candidates, too.
TEST(CostModel, LongAllReducesOverUnequalHostsMayBeHierarchical) {
  for (const Collective collective : {Collective::kAllReduce, Collective::kReduce}) {
    EXPECT_EQ(choice(collective, 16 << 20, on_two_hosts({0, 0, 0, 0, 0, 0, 0, 1})).algorithm,
              "hierarchical");
  }
}

TEST(CostModel, ForcedWhereEachRankIsAHostItSaysWhatItNeeds) {
  Config config = Config::load();
  config.set("ALGORITHM", "all_reduce=hierarchical", "test");
  schedule::CheckedSchedules schedules;
  const GroupFacts equal = on_two_hosts(schedule::testing::equal_hosts(2, 4));
  Tuner tuner = host_tuner(config, equal, {}, schedules);
  EXPECT_EQ(tuner.choose(Collective::kAllReduce, 0, 8)->algorithm, "hierarchical");
  for (const Collective other : {Collective::kReduce, Collective::kBroadcast}) {
    EXPECT_EQ(tuner.choose(other, 0, 8)->algorithm, choice(other, 8, equal).algorithm);
  }
  GroupFacts alone = on_two_hosts({0, 1, 2, 3, 4, 5, 6, 7});
  alone.num_hosts = 8;
  alone.max_ranks_per_host = 1;
  Tuner other = host_tuner(config, alone, {}, schedules);
  try {
    std::ignore = other.choose(Collective::kAllReduce, 0, 8);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("it needs at least two hosts"), std::string::npos)
        << error.what();
  }
}

TEST(CostModel, ShortMessagesOverOneHopAreNotCut) {
  GroupFacts facts;
  facts.num_ranks = facts.max_ranks_per_host = 2;
  facts.all_by_address = true;
  for (const std::size_t bytes : {2048UL, 4096UL}) {
    EXPECT_GE(choice(Collective::kBroadcast, bytes, facts).chunk_bytes, 8192U);
    EXPECT_GE(choice(Collective::kReduce, bytes, facts).chunk_bytes, 8192U);
  }
}

// ---- what is predicted: worked out by hand from the header's formula, for chunks of 1024 bytes --

// Times of a chunk of 1024 bytes, in seconds that are easy to add.
MachineConstants whole_seconds() {
  MachineConstants machine;
  machine.hop_latency = 3;
  machine.chunk_cost = 5;
  machine.copy_rate = 1024.0 / 7;
  machine.combine_rate = 1024.0 / 11;
  machine.address_cost = 13;
  machine.address_rate = 1024.0 / 17;
  machine.address_move_rate = 1024.0 / 31;
  machine.switch_cost = 19;
  machine.network_latency = 23;
  machine.network_rate = 1024.0 / 29;
  machine.network_message = 40;
  return machine;
}

// Two ranks: one sends, combines and is done; the other sends twice, copies the received data and
// its own.
ScheduleShape two_ranks() {
  ScheduleShape shape;
  shape.longest_path = 2;
  shape.ranks = 2;
  shape.loads = {{.messages_out = 1, .combined_in = 1},
                 {.messages_out = 2, .copied_in = 1, .copies = 1}};
  shape.all = {.messages_out = 3, .combined_in = 1, .copied_in = 1, .copies = 1};
  return shape;
}

constexpr std::size_t kChunk = 1024;

double predicted(const ScheduleShape& shape, std::size_t chunks, bool by_address,
                 double ranks_per_core = 1, bool network = false) {
  const CostContext context{whole_seconds(), ranks_per_core, network};
  return predict(shape, context, chunks * kChunk, kChunk, by_address);
}

// Staged: sending a chunk takes 5 + 7, copying a received one 5 + 5.25, combining 5 + 11. So a hop
// takes 3 + 12 + 16, and the busier rank 12 + 12 + 10.25 + 7 = 41.25 for each chunk.
TEST(Predict, StagedChunksAreCopiedInAndOutOfSlots) {
  const ScheduleShape shape = two_ranks();
  EXPECT_DOUBLE_EQ(predicted(shape, 1, false), 2 * 31);
  EXPECT_DOUBLE_EQ(predicted(shape, 4, false), 2 * 31 + 3 * 41.25);
  ScheduleShape one_hop = shape;
  one_hop.longest_path = 1;
  EXPECT_DOUBLE_EQ(predicted(one_hop, 4, false),
                   41.25 + 3 * 41.25);  // the work is more than the hop
  // Where nothing is combined a hop ends in a copy.
  ScheduleShape copies = shape;
  copies.loads.erase(copies.loads.begin());
  copies.all.combined_in = 0;
  EXPECT_DOUBLE_EQ(predicted(copies, 4, false), 2 * (3 + 12 + 10.25) + 3 * 41.25);
}

// By address: sending takes 5, fetching 13 + 17 into the cache and 13 + 31 into memory, and
// combining half of its 11 from the cache.
TEST(Predict, ChunksByAddressAreFetchedAndCombinedFromTheCache) {
  const ScheduleShape shape = two_ranks();
  const double hop = 3 + 5 + (5 + 30 + 5.5);
  const double busiest = 5 + 5 + (5 + 44) + 7;
  EXPECT_DOUBLE_EQ(predicted(shape, 1, true), 2 * hop);
  EXPECT_DOUBLE_EQ(predicted(shape, 4, true), 2 * hop + 3 * busiest);
  ScheduleShape combines = shape;
  combines.loads.pop_back();
  EXPECT_DOUBLE_EQ(predicted(combines, 4, true), 2 * hop + 3 * (5 + 5 + 30 + 5.5));
}

// A rank that five others copy from: half of 31 for each of them, and 5 + 44 for one alone.
TEST(Predict, RanksThatCopyFromOneShareItsRate) {
  ScheduleShape shape;
  shape.longest_path = 1;
  shape.ranks = 6;
  shape.loads = {{.copied_in = 1}, {.messages_out = 5}};
  shape.all = {.messages_out = 5, .copied_in = 5};
  EXPECT_DOUBLE_EQ(predicted(shape, 1, true), 5 * 15.5);
  EXPECT_DOUBLE_EQ(predicted(shape, 4, true), 4 * 5 * 15.5);
  shape.loads.back().messages_out = 3;
  EXPECT_DOUBLE_EQ(predicted(shape, 4, true), (3 + 5 + 5 + 44) + 3 * (5 + 44));
}

// Of 31 the writer copies its part where the reader sends nothing and chunks are long enough; the
// work of both is 5 + 5 + 44 all the same.
TEST(Predict, WriterAndReaderCopyLongChunksTogether) {
  ScheduleShape shape;
  shape.longest_path = 1;
  shape.ranks = 2;
  shape.loads = {{.copied_in = 1}, {.messages_out = 1}};
  shape.all = {.messages_out = 1, .copied_in = 1};
  const auto shared = [&](double least, double ranks_per_core) {
    CostContext context{whole_seconds(), ranks_per_core};
    context.share_bytes = least;
    return predict(shape, context, 4 * kChunk, kChunk, true);
  };
  const double reader = 5 + 13 + 31 / 1.7;
  EXPECT_DOUBLE_EQ(shared(kChunk, 1), (3 + 5 + reader) + 3 * reader);
  EXPECT_DOUBLE_EQ(shared(kChunk + 1, 1), (3 + 5 + 5 + 44) + 3 * (5 + 44));
  // A rank that passes the chunk on reads alone.
  shape.loads.front().messages_out = 1;
  EXPECT_DOUBLE_EQ(shared(kChunk, 1), (3 + 5 + 5 + 44) + 3 * (5 + 5 + 44));
}

// The second copy into a slot, and that of received data, takes half of 7.
TEST(Predict, WhatIsSentAgainIsInCaches) {
  ScheduleShape shape = two_ranks();
  shape.loads[1].out_again = 1;
  EXPECT_DOUBLE_EQ(predicted(shape, 4, false), 2 * 31 + 3 * (41.25 - 3.5));
  EXPECT_DOUBLE_EQ(predicted(shape, 4, true), predicted(two_ranks(), 4, true));
  EXPECT_DOUBLE_EQ(predicted(shape, 4, false, 1, true), predicted(two_ranks(), 4, false, 1, true));
}

TEST(ScheduleShape, CountsWhatIsSentAgain) {
  const auto most_again = [](const char* algorithm, Collective collective, int ranks) {
    const auto checked = schedule::CheckedSchedules().get(algorithm, {collective, ranks, 0, 1});
    std::vector<std::pair<int, int>> found;
    for (const RankLoad& load : ScheduleShape::of(*checked).loads) {
      found.emplace_back(load.messages_out, load.out_again);
    }
    return std::ranges::max(found);
  };
  using Pair = std::pair<int, int>;
  EXPECT_EQ(most_again("direct", Collective::kBroadcast, 4), Pair(3, 2));
  EXPECT_EQ(most_again("direct", Collective::kScatter, 4), Pair(3, 0)) << "other data for each";
  EXPECT_EQ(most_again("ring", Collective::kAllGather, 4), Pair(3, 2)) << "all but its own block";
}

// A root of three messages, and one of two whose children send one of theirs: sending takes 5 + 7,
// and 4 more where a line takes 9 from core to core.
TEST(Predict, ShortChunksOfARootCostTheirSendersALine) {
  ScheduleShape direct;
  direct.longest_path = 1;
  direct.ranks = 4;
  direct.rooted = true;
  direct.loads = {{.copied_in = 1}, {.messages_out = 3}};
  direct.all = {.messages_out = 3, .copied_in = 3};
  ScheduleShape tree = direct;
  tree.longest_path = 2;
  tree.loads = {{.copied_in = 1}, {.messages_out = 1, .copied_in = 1}, {.messages_out = 2}};
  CostContext context{whole_seconds()};
  context.machine.hop_latency = 9;
  const auto predicted_for = [&](const ScheduleShape& shape, std::size_t chunks) {
    return predict(shape, context, chunks * kChunk, kChunk, false);
  };
  const double hop = 9 + 12 + 10.25;
  EXPECT_DOUBLE_EQ(predicted_for(direct, 1), 3 * 16);
  EXPECT_DOUBLE_EQ(predicted_for(tree, 1), (2 * hop + 2 * 16) / 2);
  EXPECT_DOUBLE_EQ(predicted_for(tree, 3), (2 * hop + 2 * 16) / 2 + 2 * 2 * 16);
  context.short_bytes = kChunk - 1;
  EXPECT_DOUBLE_EQ(predicted_for(direct, 1), 3 * 12);
  EXPECT_DOUBLE_EQ(predicted_for(tree, 1), 2 * hop);
  context.short_bytes = kChunk;
  context.ranks_per_core = 2;
  EXPECT_DOUBLE_EQ(predicted_for(direct, 1), 19 + 2 * 3 * 12);
}

TEST(Predict, RanksThatShareACoreTakeTurns) {
  EXPECT_DOUBLE_EQ(predicted(two_ranks(), 4, false, 2), 2 * 19 + 4 * (2 * 41.25));
}

// Channels and parts share the unit; one thread does the work of all channels.
TEST(Predict, ChannelsAndPartsDivideTheUnit) {
  ScheduleShape shape = two_ranks();
  shape.channels = 2;
  EXPECT_DOUBLE_EQ(predicted(shape, 4, false), 2 * (3 + 2 * (12 + 16)) + 41.25);
  shape.channels = 1;
  shape.parts = 4;
  EXPECT_DOUBLE_EQ(predicted(shape, 4, false), 2 * 31);
  shape.parts = 8;  // chunks of half the size
  EXPECT_DOUBLE_EQ(predicted(shape, 4, false), 2 * (3 + (5 + 3.5) + (5 + 5.5)));
  EXPECT_DOUBLE_EQ(predicted(shape, 0, false), 2 * (3 + 5 + 5));  // costs of a chunk of nothing
}

// A message takes its sender 0.65 of 40, its receiver the rest; both move 29 seconds of bytes.
TEST(Predict, OverANetworkBothEndsPayForAMessage) {
  const double send = 34 + 29;
  const double receive = 6 + 29;
  const double busiest = 2 * send + receive + 7;
  const double hop = 23 + 2 * 29;
  EXPECT_GT(busiest, 2 * hop);
  EXPECT_DOUBLE_EQ(predicted(two_ranks(), 1, false, 1, true), busiest);
  EXPECT_DOUBLE_EQ(predicted(two_ranks(), 4, false, 1, true), 4 * busiest);
  ScheduleShape combines = two_ranks();
  combines.loads.pop_back();
  EXPECT_DOUBLE_EQ(predicted(combines, 4, false, 1, true), 2 * hop + 3 * (send + receive + 11));
  combines.longest_path = 1;
  EXPECT_DOUBLE_EQ(predicted(combines, 4, false, 1, true), 4 * (send + receive + 11));
}

// Each message costs twice as much there, and what counts is the work of all ranks of a core.
TEST(Predict, RanksThatShareACoreWaitForEachOtherOverANetwork) {
  const double send = 52 + 29;
  const double receive = 28 + 29;
  const double all = 3 * send + (receive + 11) + receive + 7;  // of two ranks, on one core
  const double busiest = 2 * send + receive + 7;
  EXPECT_DOUBLE_EQ(predicted(two_ranks(), 4, false, 2, true), all + busiest + 2 * 40 + 3 * all);
  ScheduleShape uneven = two_ranks();
  uneven.ranks = 8;  // on four cores: then the busiest rank limits
  EXPECT_DOUBLE_EQ(predicted(uneven, 4, false, 2, true), all / 4 + busiest + 2 * 40 + 3 * busiest);
}

// What the NICs take is not added to the work, but to the chain of messages that a call waits for.
TEST(Predict, NoCallTakesLessThanItsNics) {
  ScheduleShape copies = two_ranks();
  copies.loads.erase(copies.loads.begin());
  copies.all.combined_in = 0;
  CostContext context{whole_seconds(), 1, true};
  const auto seconds = [&](const ScheduleShape& shape, std::size_t chunks) {
    return predict(shape, context, chunks * kChunk, kChunk, false);
  };
  const double without = seconds(copies, 4);
  const double path = 2 * (23 + 2 * 29);
  context.nics = {.alone = 2.0 / kChunk, .first = 2.0 / kChunk, .period = 1.0 / kChunk};
  EXPECT_DOUBLE_EQ(seconds(copies, 4), without);  // fast ones
  context.nics = {.alone = 2e3 / kChunk, .first = 2e3 / kChunk, .period = 1e3 / kChunk};
  EXPECT_DOUBLE_EQ(seconds(copies, 1), path + 2e3);
  EXPECT_DOUBLE_EQ(seconds(copies, 4), path + 2e3 + 3 * 1e3);
  // What is reduced comes back: each further round waits for a latency, too.
  EXPECT_DOUBLE_EQ(seconds(two_ranks(), 4), path + 2e3 + 3 * 1e3 + 3 * 23);
}

TEST(Predict, LinksThatShareANicTakeLonger) {
  ScheduleShape shape = two_ranks();
  shape.longest_path = 0;  // the NICs alone
  shape.leaving_link_units = 1;
  CostContext context{whole_seconds(), 1, true};
  const auto seconds = [&](std::size_t bytes, int links, double cost) {
    context.nics = {.alone = 1, .first = 1, .period = 1, .links = links};
    context.nic_sharing_cost = cost;
    return predict(shape, context, bytes, bytes, false);
  };
  constexpr std::size_t kLong = std::size_t{64} << 20;
  const double alone = seconds(kLong, 1, 0.5);
  EXPECT_DOUBLE_EQ(seconds(kLong, 3, 0), alone);
  EXPECT_NEAR(seconds(kLong, 3, 0.5) / alone, 2, 0.01);
  EXPECT_NEAR(seconds(kLong, 9, 0.5) / alone, 3, 0.02);  // as five
  // Few bytes a link are through before it shows.
  EXPECT_LT(seconds(16 << 10, 3, 0.5), 1.1 * seconds(16 << 10, 1, 0.5));
}

// The heaviest channel says how many rounds there are, the data stays what it is.
TEST(Predict, WeighedChannelsTakeTheRoundsOfTheHeaviest) {
  schedule::CheckedSchedules schedules;
  ScheduleShape shape =
      ScheduleShape::of(*schedules.get("ring", {Collective::kAllReduce, 4, 0, 2}));
  const CostContext context;
  constexpr std::size_t kLongChunk = 32 << 10;
  const auto seconds = [&](std::size_t bytes) {
    return predict(shape, context, bytes, kLongChunk, false);
  };
  const double alike = seconds(64 << 20);
  const double one_chunk = seconds(8 << 10);
  shape.heaviest = 1.5;
  EXPECT_GT(seconds(64 << 20), alike);
  EXPECT_LT(seconds(64 << 20), 1.5 * alike);
  EXPECT_DOUBLE_EQ(seconds(8 << 10), one_chunk);
}

}  // namespace
}  // namespace ropewalk::tune
