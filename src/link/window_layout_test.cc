#include "link/window_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace ropewalk::link {
namespace {

using executor::Protocol;

// Links and counters of a window do not overlap.
TEST(WindowLayout, NothingOverlaps) {
  WindowLayout layout;
  layout.ranks = 3;
  layout.all_ranks = 5;
  layout.channels = 2;
  for (executor::FifoShape& shape : layout.shapes) {
    shape.headers = shape.slots = 8;
    shape.slot_bytes = 4096;
  }
  for (int own = 0; own < layout.ranks; ++own) {
    std::vector<std::pair<std::size_t, std::size_t>> ranges;  // begin, end
    const auto add = [&](std::size_t begin, std::size_t bytes) {
      ranges.emplace_back(begin, begin + bytes);
    };
    for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl, Protocol::kLl128}) {
      const std::size_t bytes =
          executor::link_bytes(protocol, layout.shapes[static_cast<std::size_t>(protocol)]);
      for (int channel = 0; channel < layout.channels; ++channel) {
        for (int peer = 0; peer < layout.ranks; ++peer) {
          add(layout.counter_offset(protocol, channel, peer), sizeof(std::uint64_t));
          if (peer != own) add(layout.link_offset(protocol, channel, own, peer), bytes);
        }
      }
    }
    add(layout.board_offset(0), layout.board_offset(5) - layout.board_offset(0));
    std::ranges::sort(ranges);
    for (std::size_t i = 1; i < ranges.size(); ++i) {
      EXPECT_LE(ranges[i - 1].second, ranges[i].first);
    }
    EXPECT_LE(ranges.back().second, layout.bytes());
  }
}

// What one rank sends is what the other one receives: the same link and counter.
TEST(WindowSides, OfTwoRanksMeet) {
  WindowLayout layout;
  layout.ranks = 2;
  layout.channels = 2;
  for (executor::FifoShape& shape : layout.shapes) {
    shape.headers = shape.slots = 8;
    shape.slot_bytes = 256;
  }
  std::vector<std::byte> windows(2 * layout.bytes());
  std::byte* const first = windows.data();
  std::byte* const second = first + layout.bytes();
  const WindowSides lower{layout, first, second, 0, 1};
  const WindowSides upper{layout, second, first, 1, 0};
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl}) {
    for (int channel = 0; channel < 2; ++channel) {
      const executor::SendEnd sends = lower.send_end(protocol, channel, 7);
      const executor::ReceiveEnd receives = upper.receive_end(protocol, channel, 5);
      EXPECT_EQ(sends.memory, receives.memory);
      EXPECT_EQ(sends.consumed_at, receives.consumed_at);
      EXPECT_EQ(sends.peer, 7);
      EXPECT_EQ(receives.peer, 5);
      // Either end polls its own window alone.
      EXPECT_GE(receives.memory, second);
      EXPECT_LT(reinterpret_cast<std::byte*>(sends.consumed_at), second);
    }
  }
}

}  // namespace
}  // namespace ropewalk::link
