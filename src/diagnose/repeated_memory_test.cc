#include "diagnose/repeated_memory.h"

#include <gtest/gtest.h>

#include <cstring>

namespace ropewalk::diagnose {
namespace {

TEST(RepeatedMemory, ShowsTheSameBytesEachPeriod) {
  constexpr std::size_t kPeriod = RepeatedMemory::kGranularity;
  const RepeatedMemory memory(4 * kPeriod, kPeriod);
  std::memset(memory.data(), 7, kPeriod);
  EXPECT_EQ(memory.data()[3 * kPeriod + 5], std::byte{7});
  memory.data()[2 * kPeriod + 5] = std::byte{9};
  EXPECT_EQ(memory.data()[5], std::byte{9});
  EXPECT_EQ(memory.data()[kPeriod + 6], std::byte{7});
}

}  // namespace
}  // namespace ropewalk::diagnose
