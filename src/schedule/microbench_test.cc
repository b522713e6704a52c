#include "schedule/microbench.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/error.h"
#include "schedule/check.h"
#include "schedule/testing/reference_run.h"
#include "schedule/text.h"

namespace ropewalk::schedule {
namespace {

constexpr std::string_view kPatterns[] = {"chain", "fan-in", "fan-out", "mimo", "multi-chain"};

/// Calls `body` for every pattern and test of some sizes.
template <typename Body>
void for_every_request(Body&& body) {
  for (const std::string_view pattern : kPatterns) {
    for (const std::string_view test : micro_tests(pattern)) {
      for (int width = 1; width <= 4; ++width) {
        for (int length = 2; length <= 5; ++length) {
          body(MicroRequest{pattern, test, width, length});
        }
      }
    }
  }
}

std::string message_of(const MicroRequest& request) {
  try {
    compile_micro(request);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Micro, EveryPatternIsAcceptedAndComputesItsCollective) {
  std::uint64_t seed = 1;
  for_every_request([&](const MicroRequest& request) {
    const Schedule schedule = compile_micro(request);
    SCOPED_TRACE(schedule.algorithm + " " + std::to_string(request.width) + " " +
                 std::to_string(request.length));
    const CheckReport report = check(schedule, 2);
    ASSERT_TRUE(report.accepted) << report.defects.front() << "\n" << print(schedule);
    EXPECT_EQ(parse(print(schedule)), schedule);
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{53}}) {
      testing::RunOptions options;
      options.count = count;
      options.seed = ++seed;
      options.chunk = 1 + seed % 5;
      const auto wrong = testing::ReferenceRun(schedule, options).wrong();
      EXPECT_FALSE(wrong.has_value()) << *wrong;
    }
  });
}

TEST(Micro, EveryLinkCarriesOneStreamExceptTheFanInsOutput) {
  for_every_request([&](const MicroRequest& request) {
    const Schedule schedule = compile_micro(request);
    const bool gathers = request.pattern == "fan-in" && request.test == "forward";
    for (const LinkLoad& link : check(schedule).links) {
      const bool outwards = gathers && link.destination == schedule.root;
      EXPECT_NEAR(link.units, outwards ? request.width + 1 : 1, 1e-9) << schedule.algorithm;
    }
  });
}

TEST(Micro, TheCentreOfMimoHasEveryLeafAtBothEnds) {
  for (const std::string_view test : micro_tests("mimo")) {
    const Schedule schedule = compile_micro({"mimo", test, 3, 2});
    const auto links = check(schedule).links;
    EXPECT_EQ(links.size(), 6U);
    EXPECT_EQ(std::count_if(links.begin(), links.end(),
                            [](const LinkLoad& link) { return link.destination == 3; }),
              3);
  }
}

TEST(Micro, ChainsFlowFromRankZeroToTheLast) {
  for (const std::string_view test : {"forward", "reduce-forward"}) {
    for (const LinkLoad& link : check(compile_micro({"chain", test, 1, 5})).links) {
      EXPECT_EQ(link.destination, link.source + 1) << test;
    }
  }
}

TEST(Micro, RefusesUnsupportedPatterns) {
  EXPECT_NE(message_of({"loop", "forward", 1, 2}).find("unknown pattern \"loop\""),
            std::string::npos);
  EXPECT_NE(
      message_of({"fan-out", "reduce-forward", 1, 2}).find("it has forward, reduce-broadcast"),
      std::string::npos);
  EXPECT_NE(message_of({"fan-in", "forward", 0, 2}).find("width 0"), std::string::npos);
  EXPECT_NE(message_of({"chain", "forward", 1, 1}).find("2 or more"), std::string::npos);
  EXPECT_NE(message_of({"multi-chain", "forward", 40000, 40000}).find("at most"),
            std::string::npos);
}

}  // namespace
}  // namespace ropewalk::schedule
