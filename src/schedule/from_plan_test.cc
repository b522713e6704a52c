#include "schedule/from_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "schedule/check.h"
#include "schedule/testing/reference_run.h"
#include "schedule/text.h"

namespace ropewalk::schedule {
namespace {

using plan::Fraction;

constexpr Collective kPlanned[] = {Collective::kBroadcast, Collective::kReduce,
                                   Collective::kAllGather, Collective::kReduceScatter,
                                   Collective::kAllReduce};

/// Plans with random trees over ranks that all have a link of their own to each other: link
/// source * ranks + destination.
class RandomPlans {
 public:
  explicit RandomPlans(unsigned seed) : random_(seed) {}

  plan::Plan make(Collective collective, int ranks, int trees_per_root, bool all_roots,
                  bool same_way_back) {
    plan::Plan plan;
    plan.collective = collective;
    plan.algorithm = "random";
    plan.gpus.resize(static_cast<std::size_t>(ranks));
    plan.root = has_root(collective) ? below(ranks) : 0;
    for (int root = 0; root < ranks; ++root) {
      if (!all_roots && root != plan.root) continue;
      Fraction left = 6;
      for (int i = 0; i < trees_per_root; ++i) {
        const Fraction weight = i + 1 == trees_per_root ? left : left * Fraction(1 + below(3), 7);
        left -= weight;
        plan.trees.push_back(tree(collective, ranks, root, weight, same_way_back));
        plan.algbw += weight;
      }
    }
    return plan;
  }

 private:
  int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }

  plan::TreeEdge edge(int source, int destination, int ranks) {
    return {source, destination, {source * ranks + destination}};
  }

  /// (parent, child), parents first.
  std::vector<std::pair<int, int>> random_tree(int ranks, int root) {
    std::vector<int> order(static_cast<std::size_t>(ranks));
    std::iota(order.begin(), order.end(), 0);
    std::swap(order[0], order[static_cast<std::size_t>(root)]);
    std::shuffle(order.begin() + 1, order.end(), random_);
    std::vector<std::pair<int, int>> edges;
    for (int i = 1; i < ranks; ++i) {
      edges.emplace_back(order[static_cast<std::size_t>(std::max(i - 1 - below(3), 0))],
                         order[static_cast<std::size_t>(i)]);
    }
    return edges;
  }

  plan::Tree tree(Collective collective, int ranks, int root, const Fraction& weight,
                  bool same_way_back) {
    plan::Tree made;
    made.root = root;
    made.weight = weight;
    const auto down = random_tree(ranks, root);
    const auto up = same_way_back ? down : random_tree(ranks, root);
    if (reduces(collective)) {
      for (auto at = up.rbegin(); at != up.rend(); ++at) {
        made.reduce.push_back(edge(at->second, at->first, ranks));
      }
    }
    if (collective != Collective::kReduce && collective != Collective::kReduceScatter) {
      for (const auto& [parent, child] : down) {
        made.broadcast.push_back(edge(parent, child, ranks));
      }
    }
    return made;
  }

  std::mt19937 random_;
};

/// What the plan puts on each link when the whole message has that many elements.
std::vector<double> planned_elements(const plan::Plan& plan, double elements) {
  const auto n = static_cast<std::size_t>(plan.num_ranks());
  std::vector<double> loads(n * n, 0);
  for (const plan::Tree& tree : plan.trees) {
    for (const auto* edges : {&tree.reduce, &tree.broadcast}) {
      for (const plan::TreeEdge& edge : *edges) {
        loads[static_cast<std::size_t>(edge.links.front())] +=
            elements * (tree.weight / plan.algbw).to_double();
      }
    }
  }
  return loads;
}

template <typename Body>
void for_every_plan(Body&& body) {
  RandomPlans plans(7);
  for (const Collective collective : kPlanned) {
    for (int ranks = 2; ranks <= 9; ++ranks) {
      for (int trees = 1; trees <= 3; ++trees) {
        for (const bool same_way_back : {true, false}) {
          for (const bool all_roots : {true, false}) {
            // What must have all roots, and what must not.
            if (has_root(collective) ? all_roots
                                     : !all_roots && collective != Collective::kAllReduce) {
              continue;
            }
            body(plans.make(collective, ranks, trees, all_roots, same_way_back));
          }
        }
      }
    }
  }
}

TEST(FromPlan, IsAcceptedAndComputesItsCollective) {
  std::uint64_t seed = 1;
  int made = 0;
  for_every_plan([&](const plan::Plan& plan) {
    const PlannedSchedule planned = from_plan(plan);
    const Schedule& schedule = planned.schedule;
    SCOPED_TRACE(std::string(name(plan.collective)) + " " + std::to_string(plan.num_ranks()));
    const CheckReport report = check(schedule, 2);
    ASSERT_TRUE(report.accepted) << report.defects.front() << "\n" << print(schedule);
    EXPECT_TRUE(report.in_place);
    EXPECT_EQ(parse(print(schedule)), schedule);
    EXPECT_EQ(schedule.algorithm, "plan-random");
    const auto pieces = static_cast<std::size_t>(schedule.parts * schedule.num_channels());
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, pieces + 3, std::size_t{97}}) {
      testing::RunOptions options;
      options.count = count;
      options.seed = ++seed;
      options.chunk = 1 + seed % 5;
      const auto wrong = testing::ReferenceRun(schedule, options).wrong();
      EXPECT_FALSE(wrong.has_value()) << *wrong;
    }
    ++made;
  });
  EXPECT_GT(made, 200);
}

TEST(FromPlan, PutsOnEveryLinkWhatThePlanSays) {
  for_every_plan([&](const plan::Plan& plan) {
    const PlannedSchedule planned = from_plan(plan);
    const auto n = static_cast<std::size_t>(plan.num_ranks());
    // The message is the larger buffer: the ranks' counts together, where each has its own.
    const bool per_rank =
        plan.collective == Collective::kAllGather || plan.collective == Collective::kReduceScatter;
    const std::size_t count = 1'000'000;
    const double message = static_cast<double>(count) * (per_rank ? static_cast<double>(n) : 1);
    const auto planned_loads = planned_elements(plan, message);
    const auto counted = bytes_on_links(planned, count, 4, 1, n * n);
    // Each channel's and part's boundaries round to whole elements.
    const double slack = 4.0 * (planned.schedule.num_channels() + 2) * planned.schedule.parts *
                         (per_rank ? static_cast<double>(n) : 1);
    for (std::size_t link = 0; link < n * n; ++link) {
      EXPECT_NEAR(counted[link], 4 * planned_loads[link], 4 * slack);
    }
  });
}

TEST(FromPlan, SharesPiecesAmongRootsThatChangeTreesTogether) {
  RandomPlans plans(3);
  plan::Plan plan = plans.make(Collective::kAllGather, 4, 2, true, true);
  const Fraction weights[] = {4, 2};
  for (std::size_t i = 0; i < plan.trees.size(); ++i) plan.trees[i].weight = weights[i % 2];
  EXPECT_EQ(from_plan(plan).schedule.weight, (std::vector<int>{2, 1}));
  std::swap(plan.trees[0].weight, plan.trees[1].weight);  // the order of a root's trees is free
  EXPECT_EQ(from_plan(plan).schedule.weight, (std::vector<int>{2, 1}));
  plan.trees[0].weight = 3;
  plan.trees[1].weight = 3;  // one rank changes halfway
  EXPECT_EQ(from_plan(plan).schedule.weight, (std::vector<int>{3, 1, 2}));
}

TEST(FromPlan, KeepsWeightsThatHaveNoCommonWholeNumbers) {
  RandomPlans plans(5);
  plan::Plan plan = plans.make(Collective::kBroadcast, 3, 3, false, true);
  plan.trees[0].weight = Fraction(1, 999'983);
  plan.trees[1].weight = Fraction(1, 999'979);
  plan.trees[2].weight = Fraction(1, 3);
  const Schedule schedule = from_plan(plan).schedule;
  ASSERT_EQ(schedule.num_channels(), 3);
  EXPECT_EQ(schedule.weight[2], 1'000'000);
  EXPECT_EQ(schedule.weight[0], 3);
  EXPECT_TRUE(check(schedule).accepted);
}

std::string message_of(const plan::Plan& plan) {
  try {
    from_plan(plan);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(FromPlan, RefusesWhatIsNoPlanOfTrees) {
  RandomPlans plans(9);
  const plan::Plan good = plans.make(Collective::kAllGather, 4, 1, true, true);
  const auto spoilt = [&](auto&& spoil) {
    plan::Plan bad = good;
    spoil(bad);
    return message_of(bad);
  };
  const auto says = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  says(spoilt([](plan::Plan& p) { p.trees.clear(); }), "no trees");
  says(spoilt([](plan::Plan& p) { p.gpus.resize(1); }), "fewer than two");
  says(spoilt([](plan::Plan& p) { p.collective = Collective::kAllToAll; }), "no such collective");
  says(spoilt([](plan::Plan& p) { p.trees[1].weight = 0; }), "not positive");
  says(spoilt([](plan::Plan& p) { p.trees[1].weight = 1; }), "of the same weight");
  says(spoilt([](plan::Plan& p) { p.trees[1].broadcast.pop_back(); }), "does not reach rank");
  says(spoilt([](plan::Plan& p) { p.trees[1].broadcast[0].destination = 9; }), "is in no tree");
  says(spoilt([](plan::Plan& p) { p.trees[1].broadcast[0].destination = 1; }), "is in no tree");
  says(spoilt([](plan::Plan& p) { p.trees[1].root = -1; }), "root -1");
  says(spoilt([](plan::Plan& p) { p.collective = Collective::kReduceScatter; }), "directions");
  says(spoilt([](plan::Plan& p) { p.collective = Collective::kBroadcast; }), "of root 1, not 0");
  // A circle beside the tree: every rank has a parent, yet the root does not reach all.
  says(spoilt([](plan::Plan& p) {
         p.trees[0].broadcast = {{0, 1, {}}, {2, 3, {}}, {3, 2, {}}};
       }),
       "does not reach rank 2");
}

}  // namespace
}  // namespace ropewalk::schedule
