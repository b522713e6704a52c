#include "link/window_layout.h"

#include <algorithm>
#include <bit>

#include "executor/block/launch.h"

namespace ropewalk::link {
namespace {

constexpr std::size_t kAlign = 128;
// A counter each sector: two peers' writes do not meet in one.
constexpr std::size_t kCounterBytes = 32;
constexpr std::size_t kBoardBytes = executor::kBoardTags * sizeof(executor::CallTag);

std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

std::size_t WindowLayout::stride(executor::Protocol protocol) const noexcept {
  return aligned(executor::link_bytes(protocol, shapes[static_cast<std::size_t>(protocol)]));
}

std::size_t WindowLayout::counters_bytes() const noexcept {
  return aligned(std::size_t{executor::kNumProtocols} * static_cast<std::size_t>(channels * ranks) *
                 kCounterBytes);
}

std::size_t WindowLayout::board_offset(int rank) const noexcept {
  return counters_bytes() + static_cast<std::size_t>(rank) * kBoardBytes;
}

std::size_t WindowLayout::boards_bytes() const noexcept {
  return aligned(static_cast<std::size_t>(all_ranks) * kBoardBytes);
}

std::size_t WindowLayout::link_offset(executor::Protocol protocol, int channel, int rank,
                                      int source) const noexcept {
  const int others = ranks - 1;
  const int index = channel * others + (source < rank ? source : source - 1);
  std::size_t offset = counters_bytes() + boards_bytes();
  for (int p = 0; p < static_cast<int>(protocol); ++p) {
    offset +=
        stride(static_cast<executor::Protocol>(p)) * static_cast<std::size_t>(channels * others);
  }
  return offset + stride(protocol) * static_cast<std::size_t>(index);
}

std::size_t WindowLayout::counter_offset(executor::Protocol protocol, int channel,
                                         int destination) const noexcept {
  const int index = (static_cast<int>(protocol) * channels + channel) * ranks + destination;
  return static_cast<std::size_t>(index) * kCounterBytes;
}

std::size_t WindowLayout::bytes() const noexcept {
  std::size_t total = counters_bytes() + boards_bytes();
  for (int p = 0; p < executor::kNumProtocols; ++p) {
    total += stride(static_cast<executor::Protocol>(p)) *
             static_cast<std::size_t>(channels * (ranks - 1));
  }
  return total;
}

std::uint32_t device_link_slots(int ranks) noexcept {
  constexpr std::uint32_t kLeast = 8;
  constexpr std::uint32_t kMost = 32;
  return std::clamp(std::bit_ceil(2 * static_cast<std::uint32_t>(ranks)), kLeast, kMost);
}

executor::SendEnd WindowSides::send_end(executor::Protocol protocol, int channel,
                                        int peer) const noexcept {
  executor::SendEnd end;
  end.memory = their_window + layout.link_offset(protocol, channel, theirs, own);
  end.consumed_at = reinterpret_cast<std::uint64_t*>(
      own_window + layout.counter_offset(protocol, channel, theirs));
  end.shape = layout.shapes[static_cast<std::size_t>(protocol)];
  end.peer = peer;
  return end;
}

executor::ReceiveEnd WindowSides::receive_end(executor::Protocol protocol, int channel,
                                              int peer) const noexcept {
  executor::ReceiveEnd end;
  end.memory = own_window + layout.link_offset(protocol, channel, own, theirs);
  end.consumed_at = reinterpret_cast<std::uint64_t*>(their_window +
                                                     layout.counter_offset(protocol, channel, own));
  end.shape = layout.shapes[static_cast<std::size_t>(protocol)];
  end.peer = peer;
  return end;
}

}  // namespace ropewalk::link
