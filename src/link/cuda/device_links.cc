#include "link/cuda/device_links.h"

#include <algorithm>
#include <vector>

namespace ropewalk::link {
namespace {

using executor::Protocol;

constexpr std::size_t kGranuleBytes = 128;
constexpr std::size_t kLlSlot = 8192;
// Of ll128, with one peer; more peers share it. A multiple of a line's 120 bytes.
constexpr std::size_t kLl128Slot = std::size_t{512} * 8 * executor::kLineWords;
constexpr std::size_t kLargestSlot = std::size_t{512} << 10;
// Of all peers together, unless one of them was given more.
constexpr std::size_t kMostWindowBytes = std::size_t{256} << 20;
// Pinned memory is dearer than that of a GPU.
constexpr std::size_t kHostWindowShare = 2;

std::size_t index(Protocol protocol) { return static_cast<std::size_t>(protocol); }

executor::FifoShape simple_shape(std::size_t budget, int ranks) {
  executor::FifoShape shape;
  shape.headers = 2 * DeviceLinks::kSimpleSlots;
  shape.slots = DeviceLinks::kSimpleSlots;
  const std::size_t each =
      budget / (static_cast<std::size_t>(DeviceLinks::kChannels * std::max(1, ranks - 1)) *
                DeviceLinks::kSimpleSlots);
  shape.slot_bytes = static_cast<std::uint32_t>(std::clamp<std::size_t>(each, 4096, kLargestSlot) /
                                                kGranuleBytes * kGranuleBytes);
  return shape;
}

executor::FifoShape flagged_shape(std::size_t slot_bytes) {
  executor::FifoShape shape;
  shape.headers = executor::kFlaggedSlots;
  shape.slots = executor::kFlaggedSlots;
  shape.slot_bytes = static_cast<std::uint32_t>(slot_bytes);
  return shape;
}

std::size_t ll128_slot(int ranks) {
  constexpr std::size_t kLine = std::size_t{8} * executor::kLineWords;
  const auto peers = static_cast<std::size_t>(std::max(1, ranks - 1));
  return std::max(kLl128Slot / kLine / peers, std::size_t{16}) * kLine;
}

}  // namespace

WindowLayout DeviceLinks::layout(const Config& config, const DevicePeers& peers, int ranks) {
  WindowLayout layout;
  layout.ranks = ranks;
  layout.channels = kChannels;
  layout.shapes[index(Protocol::kLl)] = flagged_shape(kLlSlot);
  // Without lines that arrive whole there is no ll128.
  layout.shapes[index(Protocol::kLl128)] =
      flagged_shape(peers.whole_lines() ? ll128_slot(ranks) : 0);
  std::size_t budget = config.bytes(Setting::kDeviceWindow);
  const auto others = static_cast<std::size_t>(std::max(1, ranks - 1));
  budget = std::min(budget * others, std::max(budget, kMostWindowBytes));
  if (!peers.peer_access()) budget /= kHostWindowShare;
  layout.shapes[index(Protocol::kSimple)] = simple_shape(budget, ranks);
  return layout;
}

DeviceLinks::DeviceLinks(const DevicePeers& peers, const WindowLayout& layout, int rank,
                         executor::Control* control, DeviceBlocks& blocks)
    : layout_(layout), rank_(rank), control_(control), own_window_(peers.window(rank)) {
  const auto n = static_cast<std::size_t>(kChannels * layout.ranks);
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl, Protocol::kLl128}) {
    std::vector<executor::BlockSendEnd> sends(n);
    std::vector<executor::BlockReceiveEnd> receives(n);
    for (int c = 0; c < kChannels; ++c) {
      for (int r = 0; r < layout.ranks; ++r) {
        const auto i = static_cast<std::size_t>(c * layout.ranks + r);
        sends[i].peer = receives[i].peer = r;
        if (r == rank) continue;
        std::byte* theirs = peers.window(r);
        sends[i].memory = theirs + layout.link_offset(protocol, c, r, rank);
        sends[i].consumed_at =
            reinterpret_cast<std::uint64_t*>(own_window_ + layout.counter_offset(protocol, c, r));
        sends[i].shape = layout.shapes[index(protocol)];
        receives[i].memory = own_window_ + layout.link_offset(protocol, c, rank, r);
        receives[i].consumed_at =
            reinterpret_cast<std::uint64_t*>(theirs + layout.counter_offset(protocol, c, rank));
        receives[i].shape = sends[i].shape;
      }
    }
    sends_[index(protocol)] = blocks.copy(sends);
    receives_[index(protocol)] = blocks.copy(receives);
  }
  std::vector<std::byte*> boards;
  for (int r = 0; r < layout.ranks; ++r) {
    boards.push_back(peers.window(r) + layout.board_offset(rank));
  }
  boards_ = blocks.copy(boards);
}

executor::LaunchLinks DeviceLinks::ends(Protocol protocol, std::uint64_t timeout_ns) const {
  executor::LaunchLinks links;
  links.sends = reinterpret_cast<executor::BlockSendEnd*>(sends_[index(protocol)]->data());
  links.receives = reinterpret_cast<executor::BlockReceiveEnd*>(receives_[index(protocol)]->data());
  links.control = control_;
  links.timeout_ns = timeout_ns;
  links.boards = reinterpret_cast<executor::CallTag* const*>(boards_->data());
  links.board = reinterpret_cast<const executor::CallTag*>(own_window_ + layout_.board_offset(0));
  links.num_ranks = static_cast<std::uint32_t>(layout_.ranks);
  links.rank = static_cast<std::uint32_t>(rank_);
  return links;
}

}  // namespace ropewalk::link
