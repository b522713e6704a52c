#include "bootstrap/failure_state.h"

#include <gtest/gtest.h>

#include <vector>

namespace ropewalk::bootstrap {
namespace {

TEST(FailureState, HooksAreCalledOnceInTheirOrder) {
  FailureState state;
  std::vector<int> called;
  state.when_broken([&] { called.push_back(1); });
  state.when_broken([&] { called.push_back(2); });
  EXPECT_TRUE(called.empty());
  state.fail(Errc::kAborted, "first");
  state.fail(Errc::kPeerLost, "second");
  EXPECT_EQ(called, (std::vector<int>{1, 2}));
  state.when_broken([&] { called.push_back(3); });
  EXPECT_EQ(called, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(state.error().code(), Errc::kAborted);
}

TEST(FailureState, ForgottenHooksAreNotCalled) {
  FailureState state;
  int called = 0;
  state.when_broken([&] { ++called; });
  state.forget_hooks();
  state.when_broken([&] { called += 10; });
  state.on_lost(3, "the test");
  EXPECT_EQ(called, 10);
}

}  // namespace
}  // namespace ropewalk::bootstrap
