#include "link/cuda/device_links.h"

#include <algorithm>
#include <vector>

#include "core/error.h"

namespace ropewalk::link {
namespace {

using executor::Protocol;

constexpr std::size_t kGranuleBytes = 128;
constexpr std::size_t kLlSlot = kFlaggedSlotBytes;
// Slot size of ll128 with one peer; several peers share it. A multiple of a line's 120 bytes.
constexpr std::size_t kLl128Slot = std::size_t{512} * 8 * executor::kLineWords;
constexpr std::size_t kLargestSlot = std::size_t{512} << 10;
// Limit of the slots of all peers together, unless the setting gives more to one peer.
constexpr std::size_t kMostWindowBytes = std::size_t{256} << 20;
// Slot bytes of the links through host memory that run beside links between GPUs.
constexpr std::uint32_t kHybridSlot = std::uint32_t{128} << 10;
// Windows in pinned memory are smaller by this factor: it is scarcer than GPU memory.
constexpr std::size_t kHostWindowShare = 2;

std::size_t index(Protocol protocol) { return static_cast<std::size_t>(protocol); }

executor::FifoShape simple_shape(std::size_t budget, int ranks, std::uint32_t slots) {
  executor::FifoShape shape;
  shape.slots = slots;
  shape.headers = 2 * shape.slots;
  const std::size_t each =
      budget /
      (static_cast<std::size_t>(DeviceLinks::kChannels * std::max(1, ranks - 1)) * shape.slots);
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

DevicePeers::Layouts DeviceLinks::layouts(const Config& config, const DevicePeers& peers) {
  const int ranks = peers.most_on_a_host();
  const std::uint32_t slots = device_link_slots(peers.size());
  WindowLayout device;
  device.ranks = ranks;
  device.all_ranks = peers.size();
  device.channels = kChannels;
  device.shapes[index(Protocol::kLl)] = flagged_shape(kLlSlot);
  // ll128 needs 128-byte lines that arrive whole.
  device.shapes[index(Protocol::kLl128)] =
      flagged_shape(peers.access().whole_lines() ? ll128_slot(ranks) : 0);
  std::size_t budget = config.bytes(Setting::kDeviceWindow);
  const auto others = static_cast<std::size_t>(std::max(1, ranks - 1));
  budget = std::min(budget * others, std::max(budget, kMostWindowBytes));
  device.shapes[index(Protocol::kSimple)] = simple_shape(budget, ranks, slots);
  WindowLayout host = device;
  host.ranks = 2;
  host.all_ranks = 0;  // tag boards are separate
  host.shapes[index(Protocol::kLl128)] = flagged_shape(0);
  host.shapes[index(Protocol::kSimple)] = simple_shape(budget / kHostWindowShare, ranks, slots);
  // Where no pair has access, all links go through host memory.
  if (!peers.access().any() && !peers.access().missing().empty()) device.shapes = host.shapes;
  // For a pair of ranks on different hosts: every rank has one for each rank of another host.
  WindowLayout mapped = host;
  mapped.all_ranks = 1;  // a board for the peer's tags
  const auto far = static_cast<std::size_t>(std::max(1, peers.size() - 1));
  const std::size_t window = config.bytes(Setting::kDeviceWindow);
  mapped.shapes[index(Protocol::kSimple)] =
      simple_shape(std::min(window * far, std::max(window, kMostWindowBytes)) / kHostWindowShare,
                   peers.size(), slots);
  WindowLayout hybrid = host;
  hybrid.channels = kHybridChannels;
  hybrid.shapes[index(Protocol::kLl)] = flagged_shape(0);
  hybrid.shapes[index(Protocol::kSimple)].slot_bytes = kHybridSlot;
  return {device, host, hybrid, mapped};
}

DeviceLinks::DeviceLinks(const DevicePeers& peers, const DevicePeers::Layouts& layouts,
                         const DeviceMappedWindows* mapped, DeviceNetwork* network,
                         executor::Control* control, DeviceBlocks& blocks)
    : layout_(layouts.device),
      host_layout_(layouts.host),
      hybrid_layout_(layouts.hybrid),
      peers_(peers),
      mapped_(mapped),
      network_(network),
      blocks_(blocks),
      rank_(peers.rank()),
      control_(control) {
  // The trial of the windows may have changed which kind of link a pair has.
  if (!peers.access().any() && !peers.access().missing().empty()) {
    layout_.shapes = host_layout_.shapes;
  }
  std::vector<std::byte*> boards;
  std::vector<const std::byte*> far_boards;
  for (int r = 0; r < layout_.all_ranks; ++r) {
    std::byte* const board = peers.board(r);
    const bool far = mapped != nullptr && mapped->between(r);
    far_boards.push_back(far ? mapped->own_board(r) : nullptr);
    if (far) {
      boards.push_back(mapped->their_board(r));
    } else {
      boards.push_back(board == nullptr
                           ? nullptr
                           : board + layout_.board_offset(rank_) - layout_.board_offset(0));
    }
  }
  boards_ = blocks.copy(boards);
  if (mapped != nullptr) far_boards_ = blocks.copy(far_boards);
}

bool DeviceLinks::over_network(int peer) const {
  return !peers_.on_this_host(peer) && (mapped_ == nullptr || !mapped_->between(peer));
}

WindowSides DeviceLinks::sides(int peer) const {
  if (!peers_.on_this_host(peer)) return mapped_->sides(peer);
  if (peers_.reaches(peer)) {
    return {layout_, peers_.window(rank_), peers_.window(peer), peers_.number_on_host(rank_),
            peers_.number_on_host(peer)};
  }
  const int own = rank_ < peer ? 0 : 1;
  return {host_layout_, peers_.host_window(peer, rank_), peers_.host_window(peer, peer), own,
          1 - own};
}

WindowSides DeviceLinks::hybrid_sides(int peer) const {
  const int own = rank_ < peer ? 0 : 1;
  return {hybrid_layout_, peers_.hybrid_window(peer, rank_), peers_.hybrid_window(peer, peer), own,
          1 - own};
}

std::uint32_t DeviceLinks::lag_slots() const noexcept {
  const std::uint32_t slots = layout_.shapes[index(Protocol::kSimple)].slots;
  return network_ == nullptr ? slots : std::min(slots, network_->shape().slots);
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
  if (over_network(peer)) {
    RW_ASSERT(network_ != nullptr && protocol != Protocol::kLl128);
    end = network_->send_end(protocol, channel, peer);
    end.kept = sent_.find_or_make({protocol, channel, peer}, blocks_);
    return end;
  }
  end = send_end(sides(peer), protocol, channel, channel, peer);
  end.in_process = peers_.same_process(peer) && peers_.reaches(peer);
  return end;
}

executor::SendEnd DeviceLinks::hybrid_send_end(int channel, int peer) {
  RW_ASSERT(channel < kHybridChannels && peer != rank_);
  executor::SendEnd end =
      send_end(hybrid_sides(peer), Protocol::kSimple, channel, kChannels + channel, peer);
  end.always_staged = true;
  return end;
}

executor::SendEnd DeviceLinks::send_end(const WindowSides& at, Protocol protocol, int channel,
                                        int number, int peer) {
  executor::SendEnd end = at.send_end(protocol, channel, peer);
  end.kept = sent_.find_or_make({protocol, number, peer}, blocks_);
  return end;
}

executor::ReceiveEnd DeviceLinks::receive_end(Protocol protocol, int channel, int peer) {
  RW_ASSERT(channel < kChannels && peer != rank_);
  executor::ReceiveEnd end;
  if (over_network(peer)) {
    RW_ASSERT(network_ != nullptr && protocol != Protocol::kLl128);
    end = network_->receive_end(protocol, channel, peer);
    end.kept = received_.find_or_make({protocol, channel, peer}, blocks_);
    return end;
  }
  return receive_end(sides(peer), protocol, channel, channel, peer);
}

executor::ReceiveEnd DeviceLinks::hybrid_receive_end(int channel, int peer) {
  RW_ASSERT(channel < kHybridChannels && peer != rank_);
  return receive_end(hybrid_sides(peer), Protocol::kSimple, channel, kChannels + channel, peer);
}

executor::ReceiveEnd DeviceLinks::receive_end(const WindowSides& at, Protocol protocol, int channel,
                                              int number, int peer) {
  executor::ReceiveEnd end = at.receive_end(protocol, channel, peer);
  end.kept = received_.find_or_make({protocol, number, peer}, blocks_);
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
  links.board = reinterpret_cast<const executor::CallTag*>(peers_.board(rank_));
  links.num_ranks = static_cast<std::uint32_t>(layout_.all_ranks);
  links.rank = static_cast<std::uint32_t>(rank_);
  if (far_boards_ != nullptr) {
    links.far_boards = reinterpret_cast<const executor::CallTag* const*>(far_boards_->data());
  }
  if (network_ != nullptr) {
    links.network_tag = network_->own_tag();
    links.network_board = network_->board();
  }
  return links;
}

}  // namespace ropewalk::link
