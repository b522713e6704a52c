// Who is missing: asked of communicators whose ranks are threads, and the words for it.
#include "trace/roll_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/testing/ranks.h"
#include "core/error.h"

namespace ropewalk::comm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t kRollCount = 16;

CollectiveCall call_of(Collective collective, const std::vector<float>& in,
                       std::vector<float>& out) {
  CollectiveCall call;
  call.collective = collective;
  call.input = in.data();
  call.output = out.data();
  call.count = kRollCount;
  return call;
}

// Four ranks, of which rank 3 stays away from the third collective: what the others are told.
std::vector<std::string> told_without_rank_3(const std::string& trace) {
  constexpr int kRanks = 4;
  Runtime runtime;
  testing::quiet(runtime);
  runtime.set("TIMEOUT", "300ms", "test");
  runtime.set("TRACE", trace, "test");
  std::vector<std::string> told(kRanks);
  std::atomic<int> ended{0};
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime.config(), runtime.context());
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<Communicator> comm = Communicator::join(id, r, kRanks, runtime);
      const std::vector<float> in(kRollCount, 1.0F);
      std::vector<float> out(kRanks * kRollCount);
      comm->run(call_of(Collective::kAllReduce, in, out));
      comm->run(call_of(Collective::kBroadcast, in, out));
      // Nobody is a call ahead of another: a rank that only sends may otherwise be.
      comm->barrier();
      if (r != 3) {
        try {
          comm->run(call_of(Collective::kAllGather, in, out));
          ADD_FAILURE() << "no error";
        } catch (const Error& error) {
          told[static_cast<std::size_t>(r)] = error.what();
        }
        ++ended;
      }
      while (ended < kRanks - 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  told.pop_back();
  return told;
}

TEST(RollCall, AllAreToldWhoHasNotEntered) {
  for (const std::string& text : told_without_rank_3("ring")) {
    EXPECT_THAT(text, HasSubstr("rank 3 has not entered it, collective 4"));
    EXPECT_THAT(text, HasSubstr("rank 3 has last completed barrier, collective 3"));
    EXPECT_THAT(text, Not(HasSubstr("not respond")));
  }
}

TEST(RollCall, WithoutRecordsTheWaitAloneIsTold) {
  for (const std::string& text : told_without_rank_3("off")) {
    EXPECT_THAT(text, HasSubstr("all_gather"));
    EXPECT_THAT(text, Not(HasSubstr("has not entered")));
  }
}

TEST(RollCall, SaysWhereRanksAre) {
  const std::map<int, trace::RollCall::Position> found = {
      {1, {6, true, "all_reduce of 8 float32 (sum)"}},
      {2, {7, true, "broadcast of 8 float32, root 0"}},
      {4, {0, false, ""}},
  };
  EXPECT_EQ(missing(found, {0, 6, 7U, {}, {5}}),
            "; rank 3 does not respond; ranks 1, 4 have not entered it, collective 7; rank 1 is in "
            "all_reduce of 8 float32 (sum), collective 6; rank 4 has entered no operation");
  // A rank that waits for messages is told where those are for whom it waits.
  EXPECT_EQ(missing(found, {0, 6, std::nullopt, {2}, {3, 5}}),
            "; rank 2 is in broadcast of 8 float32, root 0, collective 7");
  EXPECT_EQ(missing(found, {0, 3, 5U, {}, {}}), "");
}

TEST(RollCall, SaysWhichGpusHaveNotBegun) {
  const std::map<int, trace::RollCall::Position> found = {
      {1, {6, false, "barrier", 7, 9}},    // collectives 7 to 9 wait for its GPU
      {2, {7, true, "barrier", 8, 9}},     // its GPU is in the one that is asked about
      {3, {12, false, "barrier", 0, 0}},   // is beyond it
      {4, {5, true, "all_gather", 6, 6}},  // has not called it
      {5, {5, true, "all_gather", 6, 8}},
  };
  EXPECT_EQ(missing(found, {0, 6, 7U, {}, {}}),
            "; rank 4 has not entered it, collective 7; ranks 1, 5 have enqueued it, collective 7, "
            "and their GPUs have not begun it; rank 4 is in all_gather, collective 5; rank 1 has "
            "last completed barrier, collective 6; rank 5 is in all_gather, collective 5");
}

TEST(RollCall, NumbersGoRound) {
  const std::map<int, trace::RollCall::Position> found = {
      {1, {0xffff'fffeU, false, "barrier"}},
      {2, {std::uint64_t{1} << 32U, false, "barrier"}},
  };
  EXPECT_THAT(missing(found, {0, 3, 0U, {}, {}}), HasSubstr("; rank 1 has not entered it"));
  EXPECT_THAT(missing(found, {0, 3, 0U, {}, {}}), Not(HasSubstr("rank 2")));
}

TEST(RollCall, ManyRanksAreToldTogether) {
  std::map<int, trace::RollCall::Position> found;
  for (int rank = 1; rank < 9; ++rank) found[rank] = {1, false, "barrier"};
  const std::string text = missing(found, {0, 9, 2U, {}, {}});
  EXPECT_THAT(text, HasSubstr("ranks 1, 2, 3, 4, 5, 6, 7, 8 have not entered it, collective 2"));
  EXPECT_THAT(text, HasSubstr("; rank 4 has last completed barrier, collective 1"));
  EXPECT_THAT(text, Not(HasSubstr("; rank 5")));
}

}  // namespace
}  // namespace ropewalk::comm
