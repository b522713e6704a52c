#include "executor/block/elements.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "core/types.h"

namespace ropewalk::executor {
namespace {

template <typename T>
class Integers : public ::testing::Test {};
using AllIntegers = ::testing::Types<std::int8_t, std::uint8_t, std::int32_t, std::uint32_t,
                                     std::int64_t, std::uint64_t>;
TYPED_TEST_SUITE(Integers, AllIntegers);

TYPED_TEST(Integers, AreDividedTowardsZero) {
  using T = TypeParam;
  EXPECT_EQ(divide<T>(100, 3), 33);
  EXPECT_EQ(divide<T>(2, 3), 0);
  EXPECT_EQ(divide<T>(std::numeric_limits<T>::max(), 2), std::numeric_limits<T>::max() / 2);
  if constexpr (std::numeric_limits<T>::is_signed) {
    EXPECT_EQ(divide<T>(-100, 3), -33);
    EXPECT_EQ(divide<T>(std::numeric_limits<T>::min(), 2), std::numeric_limits<T>::min() / 2);
  }
}

TYPED_TEST(Integers, Wrap) {
  using T = TypeParam;
  constexpr T kMost = std::numeric_limits<T>::max();
  constexpr T kLeast = std::numeric_limits<T>::min();
  EXPECT_EQ((apply<RedOp::kSum, T>(kMost, 1)), kLeast);
  EXPECT_EQ((apply<RedOp::kAvg, T>(kMost, 1)), kLeast);
  EXPECT_EQ((apply<RedOp::kProd, T>(kMost, 2)), static_cast<T>(-2));
  EXPECT_EQ((apply<RedOp::kMax, T>(kMost, kLeast)), kMost);
  EXPECT_EQ((apply<RedOp::kMin, T>(kMost, kLeast)), kLeast);
}

TEST(Elements, FloatsAreDividedAsTheyAre) {
  EXPECT_EQ(divide(1.0F, 3), 1.0F / 3);
  EXPECT_EQ(divide(1.0, 3), 1.0 / 3);
  EXPECT_EQ(divide(-7.0, 2), -3.5);
}

TEST(Elements, MaxAndMinPassOverNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ((apply<RedOp::kMax, float>(nan, 1)), 1);
  EXPECT_EQ((apply<RedOp::kMax, float>(1, nan)), 1);
  EXPECT_EQ((apply<RedOp::kMin, float>(nan, 1)), 1);
  EXPECT_EQ((apply<RedOp::kMin, float>(1, nan)), 1);
}

}  // namespace
}  // namespace ropewalk::executor
