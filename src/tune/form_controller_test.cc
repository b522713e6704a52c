#include "tune/form_controller.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace ropewalk::tune {
namespace {

// Calls of forms that take `seconds` and, each, up to `noise` of that more.
struct Calls {
  std::vector<double> seconds;
  double noise = 0;
  std::minstd_rand dice{1};
  std::vector<int> made = std::vector<int>(seconds.size());

  void make(FormController& controller, int many) {
    for (int i = 0; i < many; ++i) {
      const int form = controller.wanted();
      ++made[static_cast<std::size_t>(form)];
      const double late = noise * static_cast<double>(dice() % 1000) / 1000;
      controller.measured(form, seconds[static_cast<std::size_t>(form)] * (1 + late));
    }
  }
};

TEST(FormController, TakesTheFasterForm) {
  for (const double other : {0.3, 0.9, 1.1, 3.0}) {
    FormController controller;
    // What takes much longer is found among late ranks, too.
    Calls calls{{1, other}, other == 0.3 || other == 3.0 ? 0.5 : 0.02};
    calls.make(controller, 200);
    EXPECT_TRUE(controller.settled());
    EXPECT_EQ(controller.wanted(), other < 0.96 ? 1 : 0) << other;
    EXPECT_GE(controller.gain(), 1) << other;
    // Of 200 calls the trial takes few with the slower form, and fewer where it is hopeless.
    EXPECT_LE(calls.made[other < 0.96 ? 0 : 1], other == 3.0 ? 4 : other < 0.96 ? 12 : 5) << other;
  }
}

TEST(FormController, EqualOnesStayAsChosen) {
  FormController controller;
  Calls calls{{1, 0.98}};
  calls.make(controller, 100);
  EXPECT_TRUE(controller.settled());
  EXPECT_EQ(controller.wanted(), 0);
}

TEST(FormController, BeginsWithTheChosenForm) {
  FormController controller;
  Calls calls{{1, 0.1}};
  calls.make(controller, FormController::kUnjudged + FormController::kSamples - 1);
  EXPECT_EQ(calls.made[1], 0) << "a program that calls a few times sees no trial";
  EXPECT_FALSE(controller.settled());
  EXPECT_EQ(controller.gain(), 1);
}

TEST(FormController, CallsInFlightSayNothing) {
  FormController controller;
  Calls calls{{1, 2}};
  calls.make(controller, FormController::kUnjudged + FormController::kSamples);
  ASSERT_EQ(controller.wanted(), 1);
  for (int i = 0; i < 100; ++i) controller.measured(0, 0.001);
  EXPECT_EQ(controller.wanted(), 1);
  calls.make(controller, 20);
  EXPECT_EQ(controller.wanted(), 0);
  EXPECT_NEAR(controller.gain(), 2, 1e-9);
}

TEST(FormController, TriesAgainWhenCallsTakeLonger) {
  FormController controller;
  Calls calls{{1, 2}};
  calls.make(controller, 50);
  ASSERT_EQ(controller.wanted(), 0);
  calls.seconds = {5, 2};
  calls.make(controller, 2 * FormController::kWatched + 20);
  EXPECT_EQ(controller.wanted(), 1);
  calls.seconds = {1, 4};
  calls.make(controller, 2 * FormController::kWatched + 20);
  EXPECT_EQ(controller.wanted(), 0);
}

// The other form became faster, and the chosen one did not change.
TEST(FormController, TriesAgainNowAndThen) {
  FormController controller;
  Calls calls{{1, 2}};
  calls.make(controller, 50);
  calls.seconds = {1, 0.5};
  calls.make(controller, FormController::kPause + 20);
  EXPECT_EQ(controller.wanted(), 1);
  EXPECT_TRUE(controller.settled());
}

// The best of several, wherever it stands, among late ranks; what is far slower takes two calls.
TEST(FormController, TakesTheFastestOfSeveral) {
  for (int fastest = 0; fastest < 5; ++fastest) {
    FormController controller(4, FormController::kPause, 5);
    Calls calls{{1, 1.2, 0.95, 3, 4}, 0.02};
    calls.seconds[static_cast<std::size_t>(fastest)] = 0.5;
    calls.make(controller, 60);
    EXPECT_TRUE(controller.settled());
    EXPECT_EQ(controller.wanted(), fastest);
    EXPECT_NEAR(controller.gain(), fastest == 2 ? 2 : 1.9, 0.1);
    for (const int hopeless : {3, 4}) {
      if (hopeless == fastest) continue;
      EXPECT_LE(calls.made[static_cast<std::size_t>(hopeless)], 3);
    }
    // And when another one has become it.
    std::swap(calls.seconds[static_cast<std::size_t>(fastest)],
              calls.seconds[static_cast<std::size_t>((fastest + 1) % 5)]);
    calls.seconds[static_cast<std::size_t>(fastest)] += 2;
    calls.make(controller, 2 * FormController::kWatched + 60);
    EXPECT_EQ(controller.wanted(), (fastest + 1) % 5);
  }
}

// Noise that favours each of many equals now and then makes no difference to speak of.
TEST(FormController, OfManyEqualOnesTheChosenStays) {
  int changed = 0;
  for (unsigned seed = 1; seed <= 100; ++seed) {
    FormController controller(4, FormController::kPause, 5);
    Calls calls{{1, 1, 1, 1, 1}, 0.03, std::minstd_rand{seed}};
    calls.make(controller, 60);
    EXPECT_TRUE(controller.settled());
    changed += controller.wanted() == 0 ? 0 : 1;
  }
  EXPECT_EQ(changed, 0);
}

TEST(FormController, TrialsCostLittle) {
  FormController controller;
  Calls calls{{1, 1.25}, 0.1};
  calls.make(controller, 20000);
  EXPECT_LT(calls.made[1], 20000 / 100);
}

}  // namespace
}  // namespace ropewalk::tune
