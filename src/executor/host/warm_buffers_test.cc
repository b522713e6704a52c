#include "executor/host/warm_buffers.h"

#include <gtest/gtest.h>

#include <vector>

namespace ropewalk::executor {
namespace {

constexpr std::size_t kCache = std::size_t{1} << 20;

TEST(WarmBuffers, ABufferIsWarmWhenItIsUsedAgain) {
  WarmBuffers warm(kCache);
  const std::vector<std::byte> buffer(1000);
  EXPECT_FALSE(warm.touch(buffer.data(), buffer.size()));
  EXPECT_TRUE(warm.touch(buffer.data(), buffer.size()));
}

TEST(WarmBuffers, NotWhenMoreThanTheCacheWasTouchedSinceThen) {
  WarmBuffers warm(kCache);
  const std::vector<std::byte> memory(3 * kCache);
  warm.touch(memory.data(), 64);
  warm.touch(memory.data() + kCache, kCache);
  EXPECT_TRUE(warm.touch(memory.data(), 64));
  warm.touch(memory.data() + kCache, kCache);
  warm.touch(memory.data() + 2 * kCache, 64);
  EXPECT_FALSE(warm.touch(memory.data(), 64));
}

TEST(WarmBuffers, BuffersThatMoveThroughMemoryAreCold) {
  WarmBuffers warm(kCache);
  const std::vector<std::byte> memory(4 * kCache);
  constexpr std::size_t kStride = 4096;
  for (std::size_t i = 0; i < 4 * memory.size() / kStride; ++i) {
    EXPECT_FALSE(warm.touch(memory.data() + i * kStride % memory.size(), kStride)) << i;
  }
}

TEST(WarmBuffers, SomeBuffersInTurnStayWarm) {
  WarmBuffers warm(kCache);
  const std::vector<std::byte> memory(16 * 4096);
  int cold = 0;
  for (std::size_t i = 0; i < 16; ++i) warm.touch(memory.data() + i * 4096, 4096);
  for (std::size_t i = 0; i < 16; ++i) cold += !warm.touch(memory.data() + i * 4096, 4096);
  EXPECT_LE(cold, 4);  // some may share an entry
}

TEST(WarmBuffers, RanksShareTheLastCache) {
  EXPECT_GE(WarmBuffers::cache_bytes_of_each(1), WarmBuffers::cache_bytes_of_each(4));
  EXPECT_GT(WarmBuffers::cache_bytes_of_each(1000), 0U);
}

}  // namespace
}  // namespace ropewalk::executor
