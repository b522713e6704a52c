// Every collective's results, over memory links and network links, as the measuring loop verifies
// them.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "comm/testing/ranks.h"
#include "core/testing/share.h"
#include "diagnose/measure.h"
#include "diagnose/testing/hosts.h"
#include "schedule/compile.h"
#include "schedule/layout.h"

namespace ropewalk::diagnose {
namespace {

using comm::testing::quiet;
using comm::testing::with_ranks;

TEST(Communicator, MeasuresEveryCollectiveRight) {
  comm::Runtime runtime;
  quiet(runtime);
  for (const int size : {1, 2, 3, 4}) {
    with_ranks(size, runtime, [&](comm::Communicator& comm) {
      for (int c = 0; c < kNumCollectives; ++c) {
        for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{100'003}}) {
          MeasureSpec spec;
          spec.collective = static_cast<Collective>(c);
          spec.count = count;
          spec.iterations = 2;
          spec.root = has_root(spec.collective) ? -1 : 0;
          const MeasureResult result = measure(comm, spec);
          EXPECT_EQ(result.wrong, 0U) << name(spec.collective) << " " << count << " elements over "
                                      << size << " ranks by " << result.algorithm;
        }
      }
    });
  }
}

TEST(Communicator, OverNetworkLinks) {
  // Every algorithm: which data goes past the slots of a link, at either end, is the schedule's.
  const int every = std::min(3, ropewalk::testing::share());
  int number = 0;
  for (const schedule::Algorithm& algorithm : schedule::algorithms()) {
    if (number++ % every != 0) continue;
    comm::Runtime runtime;
    quiet(runtime);
    runtime.set("LINKS", "network", "test");
    runtime.set("SOCKET_IFNAME", "lo", "test");
    runtime.set("ALGORITHM", std::string(algorithm.name), "test");
    with_ranks(4, runtime, [&](comm::Communicator& comm) {
      EXPECT_EQ(comm.facts().num_hosts, 4);
      for (int c = 0; c < kNumCollectives; ++c) {
        MeasureSpec spec;
        spec.collective = static_cast<Collective>(c);
        spec.root = has_root(spec.collective) ? -1 : 0;
        if (!algorithm.supports({spec.collective, comm.size(), 0, 1})) continue;
        spec.count = 20'011;
        spec.iterations = 1;
        for (const bool in_place : {false, true}) {
          if (in_place && !schedule::in_place_input_offset(spec.collective, 0)) continue;
          spec.in_place = in_place;
          // An average is divided where it is complete: such a chunk is not only copied.
          if (reduces(spec.collective)) spec.op = in_place ? RedOp::kAvg : RedOp::kSum;
          EXPECT_EQ(measure(comm, spec).wrong, 0U)
              << name(spec.collective) << " by " << algorithm.name << (in_place ? " in place" : "");
        }
      }
    });
  }
}

// Two and three hosts of two ranks, dealt out; memory links within hosts, network links between.
TEST(Communicator, HierarchicalOverHosts) {
  for (const int hosts : {2, 3}) {
    std::vector<std::string> host_of_rank;
    for (int rank = 0; rank < 2 * hosts; ++rank) {
      host_of_rank.push_back(fmt::format("hierarchical-{}", rank % hosts));
    }
    testing::run_on_hosts(host_of_rank, "hierarchical", [&](comm::Communicator& comm) {
      EXPECT_EQ(comm.facts().num_hosts, hosts);
      for (const Collective collective :
           {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
            Collective::kBroadcast, Collective::kReduce}) {
        testing::expect_right(comm, collective, "hierarchical");
      }
    });
  }
}

}  // namespace
}  // namespace ropewalk::diagnose
