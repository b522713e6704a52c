#include "transport/registry.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ropewalk::transport {
namespace {

TEST(Registry, ProvidersMayWishForLongPieces) {
  EXPECT_EQ(piece_bytes("tcp"), 0);
  EXPECT_EQ(piece_bytes("none such"), 0);
  const auto compiled = compiled_providers();
  if (std::ranges::find(compiled, "ofi") == compiled.end()) GTEST_SKIP() << "without ofi";
  EXPECT_EQ(piece_bytes("ofi"), 512 << 10);
}

}  // namespace
}  // namespace ropewalk::transport
