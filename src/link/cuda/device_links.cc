#include "link/cuda/device_links.h"

#include <algorithm>
#include <vector>

#include "core/error.h"

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

WindowLayout DeviceLinks::layout(const Config& config, const DevicePeers& peers) {
  const int ranks = peers.most_on_a_host();
  WindowLayout layout;
  layout.ranks = ranks;
  layout.all_ranks = peers.size();
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

DeviceLinks::DeviceLinks(const DevicePeers& peers, const WindowLayout& layout,
                         DeviceNetwork* network, executor::Control* control, DeviceBlocks& blocks)
    : layout_(layout),
      peers_(peers),
      network_(network),
      blocks_(blocks),
      rank_(peers.rank()),
      control_(control),
      own_window_(peers.window(peers.rank())) {
  std::vector<std::byte*> boards;
  for (int r = 0; r < layout.all_ranks; ++r) {
    std::byte* window = peers.window(r);
    boards.push_back(window == nullptr ? nullptr : window + layout.board_offset(rank_));
  }
  boards_ = blocks.copy(boards);
}

template <typename Counters>
Counters* DeviceLinks::Kept<Counters>::find_or_make(const Key& key, DeviceBlocks& blocks) {
  Counters*& counters = made_[key];
  if (counters != nullptr) return counters;
  if (used_ == kPerBlock) {
    blocks_.push_back(blocks.copy(std::vector<Counters>(kPerBlock)));
    used_ = 0;
  }
  counters = reinterpret_cast<Counters*>(blocks_.back()->data()) + used_++;
  return counters;
}

executor::SendEnd DeviceLinks::send_end(Protocol protocol, int channel, int peer) {
  RW_ASSERT(channel < kChannels && peer != rank_);
  executor::SendEnd end;
  if (peers_.window(peer) == nullptr) {
    RW_ASSERT(network_ != nullptr && protocol == Protocol::kSimple);
    end = network_->send_end(channel, peer);
    end.kept = sent_.find_or_make({protocol, channel, peer}, blocks_);
    return end;
  }
  const int own = peers_.number_on_host(rank_);
  const int theirs = peers_.number_on_host(peer);
  end.memory = peers_.window(peer) + layout_.link_offset(protocol, channel, theirs, own);
  end.consumed_at = reinterpret_cast<std::uint64_t*>(
      own_window_ + layout_.counter_offset(protocol, channel, theirs));
  end.shape = layout_.shapes[index(protocol)];
  end.peer = peer;
  end.in_process = peers_.same_process(peer);
  end.kept = sent_.find_or_make({protocol, channel, peer}, blocks_);
  return end;
}

executor::ReceiveEnd DeviceLinks::receive_end(Protocol protocol, int channel, int peer) {
  RW_ASSERT(channel < kChannels && peer != rank_);
  executor::ReceiveEnd end;
  if (peers_.window(peer) == nullptr) {
    RW_ASSERT(network_ != nullptr && protocol == Protocol::kSimple);
    end = network_->receive_end(channel, peer);
    end.kept = received_.find_or_make({protocol, channel, peer}, blocks_);
    return end;
  }
  const int own = peers_.number_on_host(rank_);
  const int theirs = peers_.number_on_host(peer);
  end.memory = own_window_ + layout_.link_offset(protocol, channel, own, theirs);
  end.consumed_at = reinterpret_cast<std::uint64_t*>(
      peers_.window(peer) + layout_.counter_offset(protocol, channel, own));
  end.shape = layout_.shapes[index(protocol)];
  end.peer = peer;
  end.kept = received_.find_or_make({protocol, channel, peer}, blocks_);
  return end;
}

const void* DeviceLinks::message_ends(Protocol protocol, int peer, bool sends, int channels) {
  std::shared_ptr<DeviceBlock>& block = messages_[{protocol, peer, sends}];
  if (block == nullptr && sends) {
    std::vector<executor::SendEnd> ends;
    for (int c = 0; c < channels; ++c) ends.push_back(send_end(protocol, c, peer));
    block = blocks_.copy(ends);
  } else if (block == nullptr) {
    std::vector<executor::ReceiveEnd> ends;
    for (int c = 0; c < channels; ++c) ends.push_back(receive_end(protocol, c, peer));
    block = blocks_.copy(ends);
  }
  return block->data();
}

executor::LaunchLinks DeviceLinks::others(std::uint64_t timeout_ns) const {
  executor::LaunchLinks links;
  links.control = control_;
  links.timeout_ns = timeout_ns;
  links.boards = reinterpret_cast<executor::CallTag* const*>(boards_->data());
  links.board = reinterpret_cast<const executor::CallTag*>(own_window_ + layout_.board_offset(0));
  links.num_ranks = static_cast<std::uint32_t>(layout_.all_ranks);
  links.rank = static_cast<std::uint32_t>(rank_);
  return links;
}

}  // namespace ropewalk::link
