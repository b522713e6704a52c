// Ranks of several hosts as threads, and whether their operations are right.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/testing/ranks.h"
#include "diagnose/measure.h"
#include "schedule/layout.h"

namespace ropewalk::diagnose::testing {

/// Each rank has settings of its own: memory links within a host, network links between, and the
/// setting ALGORITHM.
inline void run_on_hosts(const std::vector<std::string>& host_of_rank, const std::string& algorithm,
                         const std::function<void(comm::Communicator&)>& body) {
  const int ranks = static_cast<int>(host_of_rank.size());
  std::vector<std::unique_ptr<comm::Runtime>> runtimes;
  for (const std::string& host : host_of_rank) {
    comm::Runtime& runtime = *runtimes.emplace_back(std::make_unique<comm::Runtime>());
    comm::testing::quiet(runtime);
    runtime.set("HOST_ID", host, "test");
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

/// Short and long, out of place and in place, from every root. All ranks call.
inline void expect_right(comm::Communicator& comm, Collective collective,
                         const std::string& algorithm) {
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
      EXPECT_EQ(result.wrong, 0U) << name(collective) << " of " << count << " by " << algorithm
                                  << " on " << comm.facts().num_hosts << " hosts";
      EXPECT_EQ(result.algorithm, algorithm) << name(collective);
    }
  }
}

}  // namespace ropewalk::diagnose::testing
