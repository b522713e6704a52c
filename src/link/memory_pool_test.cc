#include "link/memory_pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace ropewalk::link {
namespace {

struct CountedBlocks {
  std::vector<std::size_t> sizes;
  FifoMaker maker() {
    return [this](std::size_t bytes) {
      sizes.push_back(bytes);
      return host_fifo(bytes);
    };
  }
};

TEST(MemoryPool, WhatWasReservedIsTakenWithoutAnAllocation) {
  CountedBlocks blocks;
  MemoryPool pool(blocks.maker(), 8192);
  EXPECT_EQ(blocks.sizes, (std::vector<std::size_t>{8192}));
  pool.take(4096);
  pool.reserve(6000);
  EXPECT_EQ(blocks.sizes, (std::vector<std::size_t>{8192, 8192}));
  pool.take(6000);
  EXPECT_EQ(blocks.sizes.size(), 2U);
  EXPECT_EQ(pool.bytes(), 16384U);
}

TEST(MemoryPool, AReserveThatIsNotTakenAllocatesOnce) {
  CountedBlocks blocks;
  MemoryPool pool(blocks.maker(), 4096);
  pool.take(100);
  for (int i = 0; i < 5; ++i) pool.reserve(9000);
  EXPECT_EQ(blocks.sizes, (std::vector<std::size_t>{4096, 12288}));
}

TEST(MemoryPool, PiecesAreWholePagesOfTheirOwn) {
  CountedBlocks blocks;
  MemoryPool pool(blocks.maker(), std::size_t{1} << 16U);
  std::byte* const first = pool.take(1);
  std::byte* const second = pool.take(4097);
  std::byte* const third = pool.take(8);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 4096, 0U);
  EXPECT_EQ(second - first, 4096);
  EXPECT_EQ(third - second, 8192);
}

}  // namespace
}  // namespace ropewalk::link
