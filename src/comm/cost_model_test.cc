// What the tuner chooses by the cost model, with the built-in constants: it must follow what was
// measured (benchmarks/results, peers).
#include "comm/cost_model.h"

#include <gtest/gtest.h>

#include <string>

#include "comm/runtime.h"
#include "comm/tuner.h"

namespace ropewalk::comm {
namespace {

// What `ranks` choose for units of `bytes`.
Choice choice(Collective collective, std::size_t bytes, const GroupFacts& facts) {
  Runtime runtime;
  Tuner tuner(runtime.config(), facts, {}, runtime.schedules());
  return tuner.choose(collective, 0, bytes);
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
  Runtime runtime;
  Tuner tuner(runtime.config(), on_hosts(32, 0.5), constants, runtime.schedules());
  const std::string algorithm = tuner.choose(Collective::kBroadcast, 0, 8).algorithm;
  EXPECT_NE(algorithm.find("binary_tree"), std::string::npos) << algorithm;
}

TEST(CostModel, LongMessagesBetweenHostsFillTheirSlots) {
  for (const double shared : {0.5, 2.0}) {
    EXPECT_GE(choice(Collective::kAllToAll, std::size_t{2} << 20, on_hosts(4, shared)).chunk_bytes,
              std::size_t{16} << 10);
  }
}

// Halves of a short message cost more than they hide.
TEST(CostModel, ShortMessagesOverOneHopAreNotCut) {
  GroupFacts facts;
  facts.num_ranks = facts.max_ranks_per_host = 2;
  facts.all_by_address = true;
  for (const std::size_t bytes : {2048UL, 4096UL}) {
    EXPECT_GE(choice(Collective::kBroadcast, bytes, facts).chunk_bytes, 8192U);
    EXPECT_GE(choice(Collective::kReduce, bytes, facts).chunk_bytes, 8192U);
  }
}

}  // namespace
}  // namespace ropewalk::comm
