// Plans for hosts that nobody described: named by ALGORITHM they run between ranks of unequal
// hosts, memory links within a host, network links between, with the right results.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "comm/explain.h"
#include "diagnose/testing/hosts.h"

namespace ropewalk::diagnose {
namespace {

using testing::expect_right;
using testing::run_on_hosts;

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
    run_on_hosts({"plans-a", "plans-b", "plans-a", "plans-b", "plans-b"}, algorithm,
                 [&](comm::Communicator& comm) {
                   EXPECT_EQ(comm.facts().num_hosts, 2);
                   for (const Collective collective : served) {
                     expect_right(comm, collective, algorithm);
                   }
                 });
  }
}

// Of hosts of one address the rate of NICs is not known: no plan is made unasked, and joining sets
// nothing up for it.
TEST(PlansForFoundHosts, AreNotMadeUnaskedWhereProcessorsLimit) {
  run_on_hosts({"plans-a", "plans-a", "plans-a", "plans-b"}, "auto", [](comm::Communicator& comm) {
    const std::string told = comm::explain(comm, Collective::kAllReduce, 16 << 20, 0);
    EXPECT_EQ(told.find("plan-"), std::string::npos) << told;
    EXPECT_NE(told.find(R"("planning":null)"), std::string::npos) << told;
  });
}

}  // namespace
}  // namespace ropewalk::diagnose
