#include "link/links.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

#include "core/guarded_write.h"
#include "executor/host/lending.h"

namespace ropewalk::link {
Links::Links(bootstrap::Bootstrap& bootstrap, std::vector<PeerReach> reach,
             std::shared_ptr<HostSegment> segment, std::unique_ptr<transport::Transport> transport,
             const executor::FifoShape& shape)
    : bootstrap_(bootstrap),
      reach_(std::move(reach)),
      segment_(std::move(segment)),
      shape_(shape),
      network_(bootstrap, std::move(transport), {shape}) {}

Links::~Links() = default;

executor::SendEnd* Links::send_end(int channel, int peer, const Route& route) {
  const PeerReach& reach = reach_[static_cast<std::size_t>(peer)];
  if (reach.local_rank >= 0) {
    const Key key{channel, peer};
    if (const auto there = memory_sends_.find(key); there != memory_sends_.end()) {
      return there->second.get();
    }
    const int self = reach_[static_cast<std::size_t>(bootstrap_.rank())].local_rank;
    auto made = std::make_unique<executor::SendEnd>();
    made->lie_in(segment_->link(channel, self, reach.local_rank), shape_);
    made->peer = peer;
    made->address_allowed = reach.by_address;
    if (reach.by_address && can_guard_writes()) made->process = reach.process;
    return (memory_sends_[key] = std::move(made)).get();
  }
  NetworkSender& sender = network_.sender(channel, peer, route);
  return sender.connected() ? &sender.end() : nullptr;
}

executor::ReceiveEnd* Links::receive_end(int channel, int peer, const Route& route) {
  const PeerReach& reach = reach_[static_cast<std::size_t>(peer)];
  if (reach.local_rank >= 0) {
    const Key key{channel, peer};
    if (const auto there = memory_receives_.find(key); there != memory_receives_.end()) {
      return there->second.get();
    }
    const int self = reach_[static_cast<std::size_t>(bootstrap_.rank())].local_rank;
    auto made = std::make_unique<executor::ReceiveEnd>();
    made->lie_in(segment_->link(channel, reach.local_rank, self), shape_);
    made->peer = peer;
    made->process = reach.process;
    return (memory_receives_[key] = std::move(made)).get();
  }
  NetworkReceiver& receiver = network_.receiver(channel, peer, route);
  return receiver.connected() ? &receiver.end() : nullptr;
}

void Links::give_back_buffers() noexcept {
  for (const auto& [key, end] : memory_receives_) executor::give_back(*end);
}

void Links::take_back_buffers() noexcept {
  for (const auto& [key, end] : memory_sends_) {
    if (reach_[static_cast<std::size_t>(end->peer)].process == 0) executor::take_back(*end);
  }
}

std::vector<Links::Untaken> Links::untaken(bool unasked) {
  std::vector<Untaken> found;
  const auto look = [&](executor::ReceiveEnd& end) {
    executor::SlotHeader* slot = end.header(end.received + 1);
    if (std::atomic_ref(slot->sequence).load(std::memory_order_acquire) == end.received + 1) {
      found.push_back({end.peer, slot->tag});
    }
  };
  for (auto& [key, end] : memory_receives_) look(*end);
  network_.for_each_receiver([&](NetworkReceiver& receiver) { look(receiver.end()); });
  if (!unasked || segment_ == nullptr) return found;
  const int self = reach_[static_cast<std::size_t>(bootstrap_.rank())].local_rank;
  for (int peer = 0; peer < static_cast<int>(reach_.size()); ++peer) {
    const int source = reach_[static_cast<std::size_t>(peer)].local_rank;
    if (source < 0 || source == self) continue;
    for (int channel = 0; channel < segment_->layout().channels; ++channel) {
      if (memory_receives_.contains({channel, peer})) continue;
      // The first chunk stays where it is until it is taken. Twice: the number says that the rest
      // is there, as with an end of the link.
      const std::size_t offset = shape_.header_offset(1);
      const auto first = segment_->peek(channel, source, self, offset);
      if (!first.has_value() || first->sequence != 1) continue;
      std::atomic_thread_fence(std::memory_order_acquire);
      const auto whole = segment_->peek(channel, source, self, offset);
      if (whole.has_value()) found.push_back({peer, whole->tag});
    }
  }
  return found;
}

}  // namespace ropewalk::link
