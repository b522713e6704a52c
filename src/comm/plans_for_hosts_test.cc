// Plans for hosts that no TOPOLOGY names: made in the background, and in use on all ranks from the
// same call on.
#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/testing/ranks.h"

namespace ropewalk::comm {
namespace {

constexpr std::size_t kCount = std::size_t{1} << 18U;

struct Seen {
  std::uint64_t first = 0;  // call by a plan
  std::string algorithm;
};

// Ranks in turn on two hosts. `planner` of rank 1, if any.
std::vector<Seen> reduce_until_planned(const tune::KeptPlans::Planner& planner,
                                       std::chrono::seconds limit) {
  constexpr int kRanks = 4;
  std::vector<std::unique_ptr<Runtime>> runtimes;
  for (int r = 0; r < kRanks; ++r) {
    runtimes.push_back(std::make_unique<Runtime>());
    testing::quiet(*runtimes.back());
    runtimes.back()->set("HOST_ID", r % 2 == 0 ? "a" : "b", "test");
    runtimes.back()->set("NET", "tcp", "test");
    runtimes.back()->set("ADAPT_CHUNKS", "0", "test");
  }
  if (planner) runtimes[1]->plans()->plan_with(planner);
  const bootstrap::UniqueId id =
      bootstrap::make_unique_id(runtimes[0]->config(), runtimes[0]->context());
  std::vector<Seen> seen(kRanks);
  std::barrier all_done(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      try {
        const auto comm = Communicator::join(id, r, kRanks, *runtimes[static_cast<std::size_t>(r)]);
        std::vector<std::int32_t> input(kCount);
        std::vector<std::int32_t> output(kCount);
        CollectiveCall call;
        call.input = input.data();
        call.output = output.data();
        call.count = kCount;
        call.type = DataType::kInt32;
        const auto end = std::chrono::steady_clock::now() + limit;
        std::int32_t go_on = 1;
        for (std::uint64_t n = 1; go_on != 0; n += 2) {
          for (std::size_t i = 0; i < kCount; ++i) {
            input[i] = static_cast<std::int32_t>(i + n) * (r + 1);
          }
          comm->run(call);
          for (std::size_t i = 0; i < kCount; i += 997) {
            EXPECT_EQ(output[i], static_cast<std::int32_t>(i + n) * 10) << "rank " << r;
          }
          // Together to the end: one call more, by all.
          const bool planned = comm->algorithm_of(call).starts_with("plan-");
          const std::int32_t wants = !planned && std::chrono::steady_clock::now() < end ? 1 : 0;
          CollectiveCall ask = call;
          ask.input = &wants;
          ask.output = &go_on;
          ask.count = 1;
          ask.op = RedOp::kMax;
          comm->run(ask);
        }
        comm->run(call);  // one by the plan, if there is one
        for (const CallRecords::Record& record : comm->records().read()) {
          if (record.count != kCount || !record.algorithm.starts_with("plan-")) continue;
          seen[static_cast<std::size_t>(r)] = {record.call, record.algorithm};
          break;
        }
        all_done.arrive_and_wait();  // none leaves while another one still receives
        comm->finalize();
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << ": " << error.what();
        all_done.arrive_and_drop();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return seen;
}

TEST(PlansForHosts, AreInUseOnAllRanksFromTheSameCallOn) {
  const std::vector<Seen> seen = reduce_until_planned({}, std::chrono::seconds(60));
  for (const Seen& rank : seen) {
    EXPECT_GT(rank.first, 0U);
    EXPECT_EQ(rank.first, seen[0].first);
    EXPECT_EQ(rank.algorithm, seen[0].algorithm);
  }
}

// A rank whose plans are others, say of another build, keeps all from theirs.
TEST(PlansForHosts, ThatDifferAreInUseNowhere) {
  const auto fewer = [](const topology::Topology& machine, const tune::PlansRequest& request) {
    tune::PlansMade made = tune::make_plans(machine, request);
    made.algorithms.resize(1);
    return made;
  };
  for (const Seen& rank : reduce_until_planned(fewer, std::chrono::seconds(2))) {
    EXPECT_EQ(rank.first, 0U) << rank.algorithm;
  }
}

}  // namespace
}  // namespace ropewalk::comm
