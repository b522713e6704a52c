// All graphs of up to four GPUs with capacities 0 to 2, and many of five: bounds against
// enumeration of all cuts, plans against the bounds and the independent check.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/index.h"
#include "plan/bounds.h"
#include "plan/certificate.h"
#include "plan/planner.h"

namespace ropewalk::plan {
namespace {

/// capacity[a * n + b] between GPUs; no other nodes.
topology::Topology graph_of(int n, const std::vector<int>& capacity) {
  topology::Description out;
  out.name = "small";
  for (int i = 0; i < n; ++i) {
    topology::Node node;
    node.id = fmt::format("g{}", i);
    node.rank = i;
    out.nodes.push_back(node);
  }
  for (int a = 0; a < n; ++a) {
    for (int b = 0; b < n; ++b) {
      if (capacity[at(a * n + b)] == 0) continue;
      topology::Link link;
      link.source = at(a);
      link.destination = at(b);
      link.type = topology::LinkType::kNvlink;
      link.capacity = capacity[at(a * n + b)];
      out.links.push_back(link);
    }
  }
  return topology::Topology(out);
}

/// Both bounds by looking at every set of GPUs. 0 where some GPU cannot be reached.
struct ByEnumeration {
  Fraction gather;
  Fraction broadcast;  // from GPU 0
};

ByEnumeration enumerate(int n, const std::vector<int>& capacity) {
  std::optional<Fraction> gather;
  std::optional<Fraction> broadcast;
  for (int set = 1; set + 1 < (1 << n); ++set) {
    int out = 0;
    int inside = 0;
    for (int a = 0; a < n; ++a) {
      inside += (set >> a) & 1;
      for (int b = 0; b < n; ++b) {
        if (((set >> a) & 1) != 0 && ((set >> b) & 1) == 0) out += capacity[at(a * n + b)];
      }
    }
    const Fraction ratio(out, inside);
    if (!gather.has_value() || ratio < *gather) gather = ratio;
    if ((set & 1) != 0 && (!broadcast.has_value() || Fraction(out) < *broadcast)) broadcast = out;
  }
  return {*gather, *broadcast};
}

void compare(int n, const std::vector<int>& capacity, bool with_plans) {
  const topology::Topology machine = graph_of(n, capacity);
  const ByEnumeration wanted = enumerate(n, capacity);
  if (wanted.gather == Fraction(0)) {
    EXPECT_THROW(make_network(machine, {}), Error);
    return;
  }
  const Network network = make_network(machine, {});
  ASSERT_EQ(all_gather_bound(network).rate * network.unit, wanted.gather);
  ASSERT_EQ(broadcast_bound(network, 0).rate * network.unit, wanted.broadcast);
  if (!with_plans) return;
  for (const Collective collective :
       {Collective::kAllGather, Collective::kBroadcast, Collective::kAllReduce}) {
    Request request;
    request.collective = collective;
    request.algorithm = "optimal";
    const Plan plan = make_plan(machine, request);
    const Certificate found = check(machine, plan);
    ASSERT_TRUE(found.valid && found.bound_holds && found.optimal && found.defects.empty())
        << name(collective) << ": " << (found.defects.empty() ? "" : found.defects[0]);
    if (collective == Collective::kAllGather) {
      ASSERT_EQ(plan.algbw, wanted.gather * Fraction(n));
    } else if (collective == Collective::kBroadcast) {
      ASSERT_EQ(plan.algbw, wanted.broadcast);
    }
  }
}

TEST(SmallGraphs, AllDirectedOnesOfThreeGpus) {
  for (int code = 0; code < 729; ++code) {  // 3^6
    std::vector<int> capacity(9, 0);
    for (int arc = 0, left = code; arc < 9; ++arc) {
      if (arc % 4 == 0) continue;
      capacity[at(arc)] = left % 3;
      left /= 3;
    }
    compare(3, capacity, true);
    if (HasFatalFailure()) FAIL() << "code " << code;
  }
}

/// Every undirected graph of n GPUs with capacities 0 to `most`, each `step`-th with plans.
void all_undirected(int n, int most, int step) {
  const int pairs = n * (n - 1) / 2;
  int count = 1;
  for (int i = 0; i < pairs; ++i) count *= most + 1;
  for (int code = 0; code < count; ++code) {
    std::vector<int> capacity(at(n * n), 0);
    int left = code;
    for (int a = 0; a < n; ++a) {
      for (int b = a + 1; b < n; ++b) {
        capacity[at(a * n + b)] = capacity[at(b * n + a)] = left % (most + 1);
        left /= most + 1;
      }
    }
    compare(n, capacity, code % step == 0);
    if (::testing::Test::HasFatalFailure()) FAIL() << "code " << code;
  }
}

TEST(SmallGraphs, AllUndirectedOnesOfFourGpus) { all_undirected(4, 2, 1); }

// Each with plans takes some 20 s instead of 2: RW_TEST_ALL=1 in the environment.
TEST(SmallGraphs, AllUndirectedOnesOfFiveGpus) {
  all_undirected(5, 2, std::getenv("RW_TEST_ALL") != nullptr ? 1 : 11);
}

TEST(SmallGraphs, DirectedOnesOfFourAndFiveGpusByChance) {
  std::uint64_t state = 42;
  const auto dice = [&](int sides) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<int>((state >> 33U) % static_cast<std::uint64_t>(sides));
  };
  for (int round = 0; round < 300; ++round) {
    const int n = 4 + dice(2);
    std::vector<int> capacity(at(n * n), 0);
    for (int a = 0; a < n; ++a) {
      for (int b = 0; b < n; ++b) {
        if (a != b && dice(3) > 0) capacity[at(a * n + b)] = dice(5);
      }
    }
    compare(n, capacity, true);
    if (HasFatalFailure()) FAIL() << "round " << round;
  }
}

}  // namespace
}  // namespace ropewalk::plan
