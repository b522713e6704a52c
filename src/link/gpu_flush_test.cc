#include "link/gpu_flush.h"

#include <gtest/gtest.h>

namespace ropewalk::link {
namespace {

TEST(NeedsFlush, GoesByTheArchitecture) {
  EXPECT_TRUE(needs_flush({}));  // nothing is known
  EXPECT_TRUE(needs_flush({.capability = 70}));
  EXPECT_TRUE(needs_flush({.capability = 80}));
  EXPECT_TRUE(needs_flush({.capability = 89}));
  EXPECT_FALSE(needs_flush({.capability = 90}));
  EXPECT_FALSE(needs_flush({.capability = 100}));
  EXPECT_FALSE(needs_flush({.capability = 120}));
}

TEST(NeedsFlush, IsNotWhereCudaSaysThatWritesAreInOrder) {
  EXPECT_FALSE(needs_flush({.capability = 80, .writes_ordering = 100}));
  EXPECT_FALSE(needs_flush({.capability = 80, .writes_ordering = 200}));
}

// The word and the data come by different ways.
TEST(NeedsFlush, IsAlwaysWhereACoherentLinkJoinsGpuAndCpu) {
  EXPECT_TRUE(needs_flush({.capability = 90, .writes_ordering = 200, .coherent_host = true}));
  EXPECT_TRUE(needs_flush({.capability = 100, .coherent_host = true}));
}

}  // namespace
}  // namespace ropewalk::link
