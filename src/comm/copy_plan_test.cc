// Collectives as copies: every rank's, on memory of the host, give what the operation is defined
// as.
#include "comm/copy_plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace ropewalk::comm {
namespace {

// One rank's memory: its output at an odd address, its input beside it or in it.
struct CopyRank {
  std::vector<std::byte> memory;
  std::byte* output = nullptr;
  std::byte* input = nullptr;
};

std::byte value(int rank, std::size_t i) {
  return static_cast<std::byte>(static_cast<unsigned>(rank) * 89U + static_cast<unsigned>(i) * 7U +
                                1U);
}

struct CopyCase {
  Collective collective = Collective::kAllGather;
  int ranks = 2;
  std::size_t count = 5;
  int root = 0;
  bool in_place = false;
};

CollectiveCall call_of(const CopyCase& test, const CopyRank& rank) {
  CollectiveCall call;
  call.collective = test.collective;
  call.count = test.count;
  call.type = DataType::kFloat16;
  call.root = test.root;
  call.input = rank.input;
  call.output = rank.output;
  return call;
}

// What `rank` must find at byte `i` of its output.
std::byte wanted(const CopyCase& test, std::size_t unit, int rank, std::size_t i) {
  const auto block = static_cast<int>(i / unit);
  switch (test.collective) {
    case Collective::kAllGather: return value(block, i % unit);
    case Collective::kAllToAll:
      return value(block, static_cast<std::size_t>(rank) * unit + i % unit);
    default: return value(test.root, i);
  }
}

void check(const CopyCase& test) {
  std::vector<CopyRank> ranks(static_cast<std::size_t>(test.ranks));
  const std::size_t unit = 2 * test.count;
  std::vector<std::byte*> outputs;
  std::vector<Extent> extents;
  for (int r = 0; r < test.ranks; ++r) {
    CopyRank& rank = ranks[static_cast<std::size_t>(r)];
    const Extent extent = extent_of(call_of(test, rank), r, test.ranks);
    extents.push_back(extent);
    rank.memory.assign(extent.input_bytes + extent.output_bytes + 2, std::byte{0xee});
    rank.output = rank.memory.data() + 2;
    rank.input = rank.output + extent.output_bytes;
    if (test.in_place) {
      rank.input =
          rank.output +
          (test.collective == Collective::kAllGather ? static_cast<std::size_t>(r) * unit : 0);
    }
    for (std::size_t i = 0; i < extent.input_bytes; ++i) rank.input[i] = value(r, i);
    outputs.push_back(rank.output);
  }
  for (int r = 0; r < test.ranks; ++r) {
    const CollectiveCall call = call_of(test, ranks[static_cast<std::size_t>(r)]);
    std::set<int> peers;
    for (const RankCopy& copy : copies_of(call, r, outputs)) {
      EXPECT_EQ(copy.bytes, bytes_for_peer(call));
      EXPECT_TRUE(peers.insert(copy.peer).second);
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
    if (test.in_place) {
      EXPECT_FALSE(peers.contains(r));
    }
  }
  for (int r = 0; r < test.ranks; ++r) {
    for (std::size_t i = 0; i < extents[static_cast<std::size_t>(r)].output_bytes; ++i) {
      ASSERT_EQ(ranks[static_cast<std::size_t>(r)].output[i], wanted(test, unit, r, i))
          << name(test.collective) << " rank " << r << " byte " << i;
    }
  }
}

TEST(CopyPlan, MakesEachOperation) {
  for (const Collective collective :
       {Collective::kAllGather, Collective::kAllToAll, Collective::kBroadcast}) {
    ASSERT_TRUE(made_of_copies(collective));
    for (const int ranks : {1, 2, 3, 8}) {
      for (const bool in_place : {false, true}) {
        // An all-to-all in place has a copy of its input first.
        if (in_place && collective == Collective::kAllToAll) continue;
        for (int root = 0; root < (has_root(collective) ? ranks : 1); ++root) {
          check({collective, ranks, 5, root, in_place});
        }
      }
    }
  }
}

TEST(CopyPlan, NothingIsCopiedOfNothing) {
  std::byte memory{};
  CollectiveCall call;
  call.collective = Collective::kAllGather;
  call.input = call.output = &memory;
  EXPECT_TRUE(copies_of(call, 0, {&memory, &memory}).empty());
}

TEST(CopyPlan, RanksBeginWithDifferentPeers) {
  std::vector<std::byte> memory(64);
  const std::vector<std::byte*> outputs(4, memory.data());
  CollectiveCall call;
  call.collective = Collective::kAllToAll;
  call.count = 1;
  call.input = memory.data() + 32;
  std::set<int> first;
  for (int r = 0; r < 4; ++r) first.insert(copies_of(call, r, outputs).front().peer);
  EXPECT_EQ(first.size(), 4U);
}

TEST(CopyPlan, OthersAreLeftToKernels) {
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce,
        Collective::kGather, Collective::kScatter, Collective::kSendRecv}) {
    EXPECT_FALSE(made_of_copies(collective)) << name(collective);
  }
}

}  // namespace
}  // namespace ropewalk::comm
