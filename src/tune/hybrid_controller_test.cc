// Shares of both classes of links between GPUs, corrected by what calls take.
#include "tune/hybrid_controller.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <utility>
#include <vector>

namespace ropewalk::tune {
namespace {

constexpr double kSplitBytes = 512e6;
constexpr int kSplitHops = 2;

HybridLinks split_links() {
  HybridLinks links;
  links.channels = 8;
  links.direct_rate = 350e9;
  links.direct_hop = 2e-6;
  links.host_rate = 40e9;
  links.host_one_way_rate = 50e9;
  links.host_hop = 5e-6;
  links.chunk_bytes = std::size_t{128} << 10;
  return links;
}

// SplitCalls on a machine whose host's links carry `truth` times their measured rate.
class SplitCalls {
 public:
  explicit SplitCalls(double truth, double direct = 1) : truth_(truth), direct_(direct) {}

  // One call, and the correction after it.
  std::optional<double> call(HybridController& controller) {
    HybridLinks now = split_links();
    now.host_scale = scale;
    // Once in a while other data, of which other ranks are sometimes late.
    const bool is_other = others > 0 && made % others == 0;
    const double bytes = is_other ? own_bytes / 2 : own_bytes;
    share = now.host_share(kSplitHops, false, bytes);
    HybridLinks real = split_links();
    real.host_scale = share > cliff ? truth_ * beyond : truth_;
    HybridTimes times;
    times.scale = scale;
    times.share = share;
    times.bytes = bytes;
    times.hops = kSplitHops;
    times.chunk_bytes = real.chunk_bytes;
    const double direct =
        kSplitHops * real.direct_hop + bytes * (1 - share) / (real.direct_rate * direct_);
    const double host = real.host_setup(kSplitHops, false, real.chunk_bytes) +
                        bytes * share / real.host_rate_of(false);
    later = host - direct;
    std::uniform_real_distribution<double> of_call(-noise, noise);
    times.host_later_seconds = later + (bias + of_call(random_)) * direct;
    seconds = std::max(host, direct);
    std::exponential_distribution<double> of_others(1);
    times.seconds = seconds + (is_other ? 0.05 : late) * of_others(random_) * direct;
    ++made;
    if (share > cliff) ++made_beyond;
    return controller.measured(times);
  }
  // Many, which begin with each correction two calls later. @return corrections
  int run(HybridController& controller, int calls) {
    int corrections = 0;
    std::optional<double> next;
    int begins_at = 0;
    for (int i = 0; i < calls; ++i) {
      if (next.has_value() && i == begins_at) {
        controller.begins(*next);
        scale = *next;
        next.reset();
      }
      const auto correction = call(controller);
      if (!correction.has_value()) continue;
      EXPECT_FALSE(next.has_value());
      next = correction;
      begins_at = i + 2;
      ++corrections;
    }
    return corrections;
  }

  double own_bytes = kSplitBytes;
  int others = 0;  // every so many-th call has other data; 0: none
  double scale = 1;
  double share = 0;
  double later = 0;  // what the last call's host was
  double noise = 0;
  double bias = 0;   // the host's links look later by that share of a call
  double late = 0;   // the other ranks, on average, as a share of a call
  double cliff = 1;  // a share, above which the host's links carry `beyond` times as much
  double beyond = 1;
  double seconds = 0;  // of the last call, without waits
  int made = 0;
  int made_beyond = 0;

 private:
  double truth_;
  double direct_;
  std::mt19937 random_{1};
};

TEST(HybridController, ARateThatIsRightIsNotCorrected) {
  HybridController controller(split_links());
  SplitCalls calls(1);
  EXPECT_EQ(calls.run(controller, 100), 0);
}

TEST(HybridController, BothClassesEndTogetherAfterSomeCalls) {
  for (const double truth : {0.3, 0.6, 0.9, 1.1, 1.5, 3.0}) {
    HybridController controller(split_links());
    SplitCalls calls(truth);
    const int corrections = calls.run(controller, 80);
    EXPECT_GE(corrections, 1) << truth;
    EXPECT_LE(corrections, truth > 2 ? 7 : 3) << truth;
    EXPECT_NEAR(calls.scale / truth, 1, HybridController::kTolerance) << truth;
    HybridLinks real = split_links();
    real.host_scale = truth;
    const double best_share = real.host_share(kSplitHops, false, kSplitBytes);
    EXPECT_NEAR(calls.share / best_share, 1, 0.035) << truth;
  }
}

// Where setting up the host's links looks longer than it is, too: by half their rate it is 0.11 of
// an all-reduce of 512 MiB between two H200.
TEST(HybridController, ARateOfHalfIsFound) {
  HybridLinks slow = split_links();
  slow.host_rate = 16e9;
  slow.chunk_bytes = std::size_t{150} << 10;
  HybridController controller(slow);
  HybridTimes times;
  times.share = slow.host_share(kSplitHops, false, kSplitBytes);
  times.bytes = kSplitBytes;
  times.hops = kSplitHops;
  times.chunk_bytes = slow.chunk_bytes;
  const double setup = slow.host_setup(kSplitHops, false, slow.chunk_bytes);
  ASSERT_GT(setup, 0.1 * kSplitBytes / slow.direct_rate);
  times.seconds = 1.5e-3;
  times.host_later_seconds = -0.4e-3;
  std::optional<double> next;
  for (int i = 0; i < 20 && !next.has_value(); ++i) next = controller.measured(times);
  ASSERT_TRUE(next.has_value());
  EXPECT_DOUBLE_EQ(*next, HybridController::kLongestStep);
}

// The rate of the links between GPUs may be another, too.
TEST(HybridController, BothClassesEndTogetherWhicheverRateIsWrong) {
  for (const double direct : {0.7, 0.9, 1.1, 1.3}) {
    HybridController controller(split_links());
    SplitCalls calls(1.2, direct);
    const int corrections = calls.run(controller, 200);
    EXPECT_GE(corrections, 1) << direct;
    EXPECT_LT(corrections, HybridController::kMostChanges) << direct;
    HybridLinks real = split_links();
    real.host_scale = 1.2;
    real.direct_rate *= direct;
    const double best = real.host_share(kSplitHops, false, kSplitBytes);
    const double shortest =
        kSplitHops * real.direct_hop + kSplitBytes * (1 - best) / real.direct_rate;
    EXPECT_LT(calls.seconds, 1.025 * shortest) << direct;
  }
}

// Set-up is most of their time.
TEST(HybridController, ShortDataSaysNothing) {
  HybridController controller(split_links());
  SplitCalls calls(1.5);
  calls.own_bytes = 64e6;
  EXPECT_EQ(calls.run(controller, 200), 0);
}

// One call of a kind may be slow for any reason.
TEST(HybridController, FewCallsOfOtherDataTakeNothingBack) {
  for (const double truth : {0.5, 2.0, 3.0}) {
    HybridController controller(split_links());
    SplitCalls calls(truth);
    calls.others = 4;
    calls.run(controller, 200);
    EXPECT_NEAR(calls.scale / truth, 1, 0.05) << truth;
  }
}

// What was done when is seen on one rank alone. Operations of one kind follow each other, so that
// the first ones after a change are often of another kind than the last ones before it.
TEST(HybridController, TimesThatMisleadMakeNoCallsLonger) {
  for (const double bias : {-0.03, -0.015, 0.015, 0.03}) {
    HybridController controller(split_links());
    SplitCalls calls(1);
    calls.bias = bias;
    calls.call(controller);
    const double at_first = calls.seconds;
    std::optional<double> next;
    for (int turn = 0; turn < 200; ++turn) {
      calls.own_bytes = turn % 2 == 0 ? kSplitBytes : kSplitBytes / 4;
      for (int i = 0; i < 6; ++i) {
        if (const auto correction = calls.call(controller)) next = correction;
        if (next.has_value() && i % 3 == 2) {
          controller.begins(*next);
          calls.scale = *next;
          next.reset();
        }
      }
    }
    calls.own_bytes = kSplitBytes;
    calls.call(controller);
    EXPECT_LE(calls.seconds, HybridController::kSlower * at_first) << bias;
  }
}

TEST(HybridController, NoiseAloneChangesLittle) {
  HybridController controller(split_links());
  SplitCalls calls(1);
  calls.noise = 0.02;
  calls.run(controller, 2000);
  EXPECT_NEAR(calls.scale, 1, 0.05);
}

TEST(HybridController, NoRateIsCorrectedMoreThanSoOften) {
  HybridController controller(split_links());
  SplitCalls calls(1);
  calls.noise = 0.9;
  // Each may be taken back.
  EXPECT_LE(calls.run(controller, 5000), 2 * HybridController::kMostChanges);
}

// As on two H200 and two H100: up to some share all is well, and above it calls take much longer.
TEST(HybridController, StaysBelowAShareAboveWhichTheHostsLinksAreSlow) {
  for (const double above : {0.9, 1.1, 1.4}) {
    for (const double truth : {1.0, 1.3, 2.0}) {
      for (const double late : {0.0, 0.3}) {
        HybridController controller(split_links());
        SplitCalls calls(truth);
        calls.cliff = above * split_links().host_share(kSplitHops, false, kSplitBytes);
        calls.beyond = 0.4;
        calls.late = late;
        const int corrections = calls.run(controller, 1000);
        EXPECT_LE(calls.share, calls.cliff) << above << ' ' << truth << ' ' << late;
        EXPECT_LE(corrections, 2 * HybridController::kMostChanges);
        EXPECT_LE(calls.made_beyond, 100);
        // What the host's links may carry at most.
        HybridLinks real = split_links();
        real.host_scale = truth;
        const double best = std::min(real.host_share(kSplitHops, false, kSplitBytes), calls.cliff);
        const double shortest =
            kSplitHops * real.direct_hop + kSplitBytes * (1 - best) / real.direct_rate;
        // Late ranks hide what a step gains, and it is taken back.
        EXPECT_LE(calls.seconds, (late > 0 ? 1.06 : 1.03) * shortest)
            << above << ' ' << truth << ' ' << late;
      }
    }
  }
}

TEST(HybridController, CallsOfOneOperationAreNotComparedWithThoseOfAnother) {
  HybridController controller(split_links());
  HybridTimes times;
  times.share = 0.1;
  times.bytes = kSplitBytes;
  times.hops = kSplitHops;
  times.seconds = 1e-3;
  times.host_later_seconds = -0.5e-3;
  std::vector<double> scales;
  // Twice as long, but another operation; then longer than the same one was.
  using enum Collective;
  for (const auto& [collective, seconds] :
       {std::pair(kAllReduce, 1e-3), {kAllGather, 2e-3}, {kAllGather, 2.1e-3}}) {
    times.collective = collective;
    times.seconds = seconds;
    std::optional<double> next;
    for (int i = 0; i < 60 && !next.has_value(); ++i) next = controller.measured(times);
    ASSERT_TRUE(next.has_value()) << name(collective);
    controller.begins(*next);
    times.scale = *next;
    scales.push_back(*next);
  }
  EXPECT_DOUBLE_EQ(scales[0], HybridController::kLongestStep);
  EXPECT_GT(scales[1], scales[0]);
  EXPECT_DOUBLE_EQ(scales[2], scales[0]);
}

TEST(HybridController, CallsOfBeforeAChangeSayNothing) {
  HybridController controller(split_links());
  SplitCalls calls(2);
  std::optional<double> correction;
  for (int i = 0; i < 50 && !correction.has_value(); ++i) correction = calls.call(controller);
  ASSERT_TRUE(correction.has_value());
  EXPECT_EQ(calls.made, HybridController::kUnjudged + HybridController::kSamples);
  // While the ranks agree.
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(calls.call(controller).has_value());
  controller.begins(*correction);
  // Begun before it.
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(calls.call(controller).has_value());
  calls.scale = *correction;
  EXPECT_LE(calls.run(controller, 50), 3);
  EXPECT_NEAR(calls.scale / 2, 1, HybridController::kTolerance);
}

TEST(HybridController, TimesThatCannotBeAreNotJudged) {
  HybridController controller(split_links());
  HybridTimes times;
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(controller.measured(times).has_value());
  times.share = 1;
  times.bytes = kSplitBytes;
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(controller.measured(times).has_value());
  // Done before it can have begun.
  times.share = 0.1;
  times.host_later_seconds = -1;
  std::optional<double> found;
  for (int i = 0; i < 50 && !found.has_value(); ++i) found = controller.measured(times);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(*found, HybridController::kLongestStep);
}

TEST(HybridController, AScaleGoesFromRankToRankAsItIs) {
  for (const double scale : {0.25, 0.333333, 1.0, 3.141593, 4.0}) {
    EXPECT_DOUBLE_EQ(unpacked_scale(packed_scale(scale)), scale);
  }
}

}  // namespace
}  // namespace ropewalk::tune
