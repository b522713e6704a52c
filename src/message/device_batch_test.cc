#include "message/device_batch.h"

#include <gtest/gtest.h>

namespace ropewalk::message {
namespace {

// Threads for one put, where the team has 512: as many as move it at once, but not more than a
// warp where other puts need them.
TEST(DeviceBatch, ShortPutsHaveOneThreadAndLongOnesAWarp) {
  EXPECT_EQ(lanes_of(0, 0), 1U);
  EXPECT_EQ(lanes_of(8, 64), 1U);
  EXPECT_EQ(lanes_of(16, 64), 1U);
  EXPECT_EQ(lanes_of(17, 64), 2U);
  EXPECT_EQ(lanes_of(90, 4), 8U);
  EXPECT_EQ(lanes_of(512, 64), 32U);
  EXPECT_EQ(lanes_of(1 << 20, 64), 32U);
  EXPECT_EQ(lanes_of(1 << 20, 1), 512U);
  EXPECT_EQ(lanes_of(1 << 20, 3), 128U);
  EXPECT_EQ(lanes_of(1 << 20, 100'000), 32U);
}

}  // namespace
}  // namespace ropewalk::message
