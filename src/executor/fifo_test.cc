#include "executor/fifo.h"

#include <gtest/gtest.h>

#include <vector>

namespace ropewalk::executor {
namespace {

struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
};

Span header_of(const FifoShape& shape, std::uint64_t chunk) {
  return {shape.header_offset(chunk), shape.header_offset(chunk) + sizeof(SlotHeader)};
}

Span data_of(const FifoShape& shape, std::uint64_t chunk, std::size_t bytes) {
  if (bytes <= kInlineBytes) return header_of(shape, chunk);
  return {shape.data_offset(chunk, bytes), shape.data_offset(chunk, bytes) + bytes};
}

bool overlap(const Span& a, const Span& b) { return a.begin < b.end && b.begin < a.end; }

// A writer never writes where a chunk lies that its reader may still read: whatever the two chunks'
// sizes, while the later one has room.
TEST(FifoShape, ChunksInFlightAreSeparate) {
  const std::vector<FifoShape> shapes = {
      {.headers = 16, .slots = 4, .slot_bytes = 512},
      {.headers = 16,
       .slots = 4,
       .slot_bytes = 512,
       .short_slots = 8,
       .short_bytes = 256,
       .short_stride = 320},
      {.headers = 8, .slots = 8, .slot_bytes = 512, .interleaved = true}};
  for (const FifoShape& shape : shapes) {
    for (const std::size_t later : {1U, 96U, 97U, 256U, 257U, 512U}) {
      for (const std::size_t earlier : {1U, 96U, 97U, 256U, 257U, 512U}) {
        for (std::uint64_t chunk = 1; chunk <= 40; ++chunk) {
          const Span written = data_of(shape, chunk, later);
          ASSERT_LE(written.end, shape.bytes());
          ASSERT_GE(written.begin, 2 * kLineBytes);
          for (std::uint64_t back = 1; back < shape.window(later) && back < chunk; ++back) {
            const Span kept = data_of(shape, chunk - back, earlier);
            const Span its_header = header_of(shape, chunk - back);
            ASSERT_FALSE(overlap(written, kept)) << later << " after " << earlier << ": " << back;
            ASSERT_FALSE(overlap(written, its_header)) << later << ": " << back;
            ASSERT_FALSE(overlap(header_of(shape, chunk), kept)) << later << ": " << back;
          }
        }
      }
    }
  }
}

TEST(FifoShape, MoreShortMessagesThanLongOnesMayBeInFlight) {
  const FifoShape plain;
  EXPECT_EQ(plain.window(kInlineBytes), plain.headers);
  EXPECT_EQ(plain.window(kInlineBytes + 1), plain.slots);
  const FifoShape shape{.short_slots = 32, .short_bytes = 1024, .short_stride = 2560};
  EXPECT_EQ(shape.window(kInlineBytes), shape.headers);
  EXPECT_EQ(shape.window(1024), 32U);
  EXPECT_EQ(shape.window(1025), shape.slots);
}

TEST(CallTag, IsCopiedWithANumberOfItsOwn) {
  CallTag from;
  from.count = 0x0123'4567'89ab'cdefU;
  from.call = 0xffff'fffe;
  from.root = 0x8765;
  from.collective = 0x43;
  from.type_and_op = 0xa5;
  CallTag to;
  copy_tag(to, from, from.call);
  EXPECT_EQ(to, from);
  copy_tag(to, from, 7);
  EXPECT_EQ(to.call, 7U);
  to.call = from.call;
  EXPECT_EQ(to, from) << "nothing else has changed";
  copy_tag(to, to, 8);
  EXPECT_EQ(to.call, 8U);
}

}  // namespace
}  // namespace ropewalk::executor
