#include "schedule/repeat.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "core/error.h"
#include "schedule/checked.h"
#include "schedule/compile.h"

namespace ropewalk::schedule {
namespace {

// By source and destination.
std::map<std::pair<int, int>, double> units_between(const Checked& checked) {
  std::map<std::pair<int, int>, double> units;
  for (const LinkLoad& link : checked.report().links) {
    units[{link.source, link.destination}] += link.units;
  }
  return units;
}

TEST(Repeat, IsAcceptedAndMovesTheSame) {
  for (const int ranks : {2, 3, 4}) {
    for (const char* algorithm : {"ring", "double_binary_tree", "two_shot"}) {
      Schedule one = compile(algorithm, {Collective::kAllReduce, ranks, 0, 2});
      one.weight[0] = 3;  // channels of different shares
      const Checked once = Checked::from(one);
      const Checked thrice = Checked::from(repeated(one, 3));
      EXPECT_EQ(thrice.schedule().num_channels(), 3 * once.schedule().num_channels());
      const auto three = units_between(thrice);
      for (const auto& [ends, units] : units_between(once)) {
        ASSERT_TRUE(three.contains(ends));
        EXPECT_NEAR(three.at(ends), units, 1e-12);
      }
      EXPECT_EQ(repeated(one, 1), one);
    }
  }
}

TEST(Repeat, RefusesLessThanOnce) {
  const Schedule one = compile("ring", {Collective::kAllReduce, 2, 0, 1});
  EXPECT_THROW((void)repeated(one, 0), Error);
}

}  // namespace
}  // namespace ropewalk::schedule
