// Plans for hosts that nobody described: named by ALGORITHM they run between ranks of unequal
// hosts, memory links within a host, network links between, with the right results.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/explain.h"
#include "comm/testing/ranks.h"
#include "diagnose/measure.h"
#include "schedule/layout.h"

namespace ropewalk::diagnose {
namespace {

// Ranks as threads, each with settings of its own.
void run_on_hosts(const std::vector<std::string>& host_of_rank, const std::string& algorithm,
                  const std::function<void(comm::Communicator&)>& body) {
  const int ranks = static_cast<int>(host_of_rank.size());
  std::vector<std::unique_ptr<comm::Runtime>> runtimes;
  for (const std::string& host : host_of_rank) {
    comm::Runtime& runtime = *runtimes.emplace_back(std::make_unique<comm::Runtime>());
    comm::testing::quiet(runtime);
    runtime.set("HOST_ID", "plans-" + host, "test");
    runtime.set("NET", "tcp", "test");
    runtime.set("SOCKET_IFNAME", "lo", "test");
    runtime.set("ALGORITHM", algorithm, "test");
  }
  const bootstrap::UniqueId id =
      bootstrap::make_unique_id(runtimes[0]->config(), runtimes[0]->context());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto comm =
            comm::Communicator::join(id, rank, ranks, *runtimes[static_cast<std::size_t>(rank)]);
        body(*comm);
        comm->finalize();
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

const std::vector<Collective> kAllPlanned = {Collective::kAllReduce, Collective::kAllGather,
                                             Collective::kReduceScatter, Collective::kBroadcast,
                                             Collective::kReduce};
const std::vector<std::pair<const char*, std::vector<Collective>>> kPlans = {
    {"plan-packed", kAllPlanned},
    {"plan-ring", kAllPlanned},
    {"plan-optimal", kAllPlanned},
    {"plan-three-phase", {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce}},
};

TEST(PlansForFoundHosts, ThatASettingNamesComputeTheirOperations) {
  for (const auto& plan : kPlans) {
    const std::string algorithm = plan.first;
    const std::vector<Collective>& served = plan.second;
    run_on_hosts({"a", "b", "a", "b", "b"}, algorithm, [&](comm::Communicator& comm) {
      EXPECT_EQ(comm.facts().num_hosts, 2);
      for (const Collective collective : served) {
        for (const std::size_t count : {std::size_t{1}, std::size_t{300'007}}) {
          MeasureSpec spec;
          spec.collective = collective;
          spec.root = has_root(collective) ? -1 : 0;
          spec.count = count;
          spec.iterations = 2;
          for (const bool in_place : {false, true}) {
            if (in_place && !schedule::in_place_input_offset(collective, 0)) continue;
            spec.in_place = in_place;
            if (reduces(collective)) spec.op = in_place ? RedOp::kAvg : RedOp::kSum;
            const MeasureResult result = measure(comm, spec);
            EXPECT_EQ(result.wrong, 0U) << name(collective) << " by " << algorithm;
            EXPECT_EQ(result.algorithm, algorithm) << name(collective);
          }
        }
      }
    });
  }
}

// Over loopback the rate of NICs is not known: no plan is made unasked, and joining sets nothing up
// for it.
TEST(PlansForFoundHosts, AreNotMadeUnaskedWhereProcessorsLimit) {
  run_on_hosts({"a", "a", "a", "b"}, "auto", [](comm::Communicator& comm) {
    const std::string told = comm::explain(comm, Collective::kAllReduce, 16 << 20, 0);
    EXPECT_EQ(told.find("plan-"), std::string::npos) << told;
    EXPECT_NE(told.find(R"("planning":null)"), std::string::npos) << told;
  });
}

}  // namespace
}  // namespace ropewalk::diagnose
