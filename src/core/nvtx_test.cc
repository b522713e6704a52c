#include "core/nvtx.h"

#include <gtest/gtest.h>

#include <utility>

namespace ropewalk::nvtx {
namespace {

// With one: tests/python/nvtx_test.py.
TEST(NvtxRange, AsksNobodyWithoutATool) {
  bool asked = false;
  {
    const Range range([&] {
      asked = true;
      return std::pair(std::string_view("all_reduce"), std::uint64_t{8});
    });
  }
  EXPECT_EQ(asked, detail::kWanted);
}

}  // namespace
}  // namespace ropewalk::nvtx
