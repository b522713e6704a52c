#include "link/links.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/guarded_write.h"
#include "core/log.h"
#include "executor/host/lending.h"

namespace ropewalk::link {
namespace {

// Handles of links travel over the bootstrap under a tag for each channel and route.
constexpr std::uint32_t kHandleTag = 0x4c000000;
constexpr unsigned kChannelBits = 11;
static_assert(kRouteNumbers << kChannelBits == 1U << 24U);

constexpr std::uint32_t handle_tag(int channel, std::uint32_t route) noexcept {
  return kHandleTag | route << kChannelBits | static_cast<std::uint32_t>(channel);
}

constexpr std::uint64_t kTurnsPerLook = 4;

// By which a sender says that it does not get to a receiver: of the attempt with this number.
constexpr std::uint32_t kLostTag = 0x4f000000;
// A system repeats what got no answer after 1 s and after 3.
constexpr std::chrono::seconds kConnectTime{4};

constexpr std::uint32_t lost_tag(int channel, std::uint32_t route) noexcept {
  return kLostTag | route << kChannelBits | static_cast<std::uint32_t>(channel);
}

constexpr int kMostDevices = 64;
static_assert(1 + kMostDevices * kMostDevices <= kRouteNumbers);

}  // namespace

Links::Links(bootstrap::Bootstrap& bootstrap, std::vector<PeerReach> reach,
             std::shared_ptr<HostSegment> segment, std::unique_ptr<transport::Transport> transport,
             const executor::FifoShape& shape)
    : bootstrap_(bootstrap),
      reach_(std::move(reach)),
      segment_(std::move(segment)),
      shape_(shape),
      transport_(std::move(transport)) {}

Links::~Links() = default;

std::optional<Rails::Pair> Links::named_by(const Route& route, int peer, bool sends) const {
  if (pacer_ || !nics_of_route_ || route.empty()) return std::nullopt;
  const RouteNics nics = nics_of_route_(route);
  const int self = bootstrap_.rank();
  return rails_.through(self, peer, sends ? nics.exit : nics.entry, sends ? nics.entry : nics.exit,
                        sends ? self : peer);
}

std::uint32_t Links::number(const Route& route, int peer, bool sends) const {
  if (pacer_) return route_number(route);
  const std::optional<Rails::Pair> named = named_by(route, peer, sends);
  if (!named.has_value()) return 0;
  RW_ASSERT(named->own < kMostDevices && named->peers < kMostDevices);
  const int from = sends ? named->own : named->peers;
  const int to = sends ? named->peers : named->own;
  return static_cast<std::uint32_t>(1 + from * kMostDevices + to);
}

std::vector<Rails::Pair> Links::devices(int channel, int peer, const Route& route,
                                        bool sends) const {
  std::vector<Rails::Pair> all;
  if (const std::optional<Rails::Pair> named = named_by(route, peer, sends)) all.push_back(*named);
  const int first = channel < spread_channels_ ? channel % rails_.count() : 0;
  for (int k = 0; k < rails_.count(); ++k) {
    const Rails::Pair pair = rails_.pair(bootstrap_.rank(), peer, (first + k) % rails_.count());
    if (std::ranges::find(all, pair) == all.end()) all.push_back(pair);
  }
  return all;
}

bool Links::connect(PendingSend& pending, const RoutedKey& key) {
  const auto& [channel, peer, number] = key;
  const std::optional<std::vector<std::byte>> told =
      bootstrap_.try_recv(peer, handle_tag(channel, number));
  if (!told.has_value() && pending.connector == nullptr) return false;
  const auto own = [&]() -> const Rails::Pair& { return pending.devices[pending.attempt]; };
  try {
    if (told.has_value()) {
      transport::Handle handle{};
      RW_ASSERT(told->size() == 1 + handle.size() + (seals_ ? pending.key.size() : 0));
      pending.attempt = std::to_integer<std::size_t>(told->front());
      RW_ASSERT(pending.attempt < pending.devices.size());
      const auto at = told->begin() + 1;
      std::copy_n(at, handle.size(), handle.begin());
      std::copy(at + static_cast<std::ptrdiff_t>(handle.size()), told->end(), pending.key.begin());
      pending.begun = std::chrono::steady_clock::now();
      pending.connector = transport_->connect(own().own, handle);
    }
    pending.connection = pending.connector->poll();
    if (pending.connection != nullptr) return true;
    const bool has_others = pending.devices.size() > 1;
    if (has_others && std::chrono::steady_clock::now() - pending.begun > kConnectTime) {
      throw Error(Errc::kPeerLost, "no answer in {} s", kConnectTime.count());
    }
    return false;
  } catch (const Error& error) {
    pending.connector.reset();
    const std::string words =
        fmt::format("rank {} does not reach rank {} over {}: {}", bootstrap_.rank(), peer,
                    device_name(own()), error.what());
    if (pending.attempt + 1 == pending.devices.size()) throw Error(error.code(), "{}", words);
    log::warn("{}; another NIC is taken", words);
    const auto attempt = static_cast<std::byte>(pending.attempt);
    bootstrap_.send(peer, lost_tag(channel, number), std::span(&attempt, 1));
    return false;
  }
}

void Links::listen(PendingReceive& pending, const RoutedKey& key) {
  const auto& [channel, peer, number] = key;
  const auto take_next = [&](const std::string& words, Errc code) {
    pending.listener.reset();
    if (++pending.attempt == pending.devices.size()) throw Error(code, "{}", words);
  };
  while (const std::optional<std::vector<std::byte>> lost =
             bootstrap_.try_recv(peer, lost_tag(channel, number))) {
    if (std::to_integer<std::size_t>(lost->front()) != pending.attempt) continue;
    take_next(fmt::format("rank {} is not reached by rank {} over {}", bootstrap_.rank(), peer,
                          device_name(pending.devices[pending.attempt])),
              Errc::kPeerLost);
  }
  while (pending.listener == nullptr) {
    const Rails::Pair& pair = pending.devices[pending.attempt];
    try {
      pending.listener = transport_->listen(pair.own);
    } catch (const Error& error) {
      const std::string words =
          fmt::format("rank {} cannot be reached by rank {} over {}: {}", bootstrap_.rank(), peer,
                      device_name(pair), error.what());
      take_next(words, error.code());
      log::warn("{}; another NIC is taken", words);
      continue;
    }
    const transport::Handle& handle = pending.listener->handle();
    std::vector<std::byte> told = {static_cast<std::byte>(pending.attempt)};
    told.insert(told.end(), handle.begin(), handle.end());
    if (seals_) {
      pending.key = make_link_key();
      told.insert(told.end(), pending.key.begin(), pending.key.end());
    }
    bootstrap_.send(peer, handle_tag(channel, number), told);
  }
}

executor::SendEnd* Links::send_end(int channel, int peer, const Route& route) {
  const PeerReach& reach = reach_[static_cast<std::size_t>(peer)];
  if (reach.local_rank >= 0) {
    const Key key{channel, peer};
    if (const auto there = memory_sends_.find(key); there != memory_sends_.end()) {
      return there->second.get();
    }
    const int self = reach_[static_cast<std::size_t>(bootstrap_.rank())].local_rank;
    auto made = std::make_unique<executor::SendEnd>();
    made->memory = segment_->link(channel, self, reach.local_rank);
    made->shape = shape_;
    made->peer = peer;
    made->address_allowed = reach.by_address;
    if (reach.by_address && can_guard_writes()) made->process = reach.process;
    return (memory_sends_[key] = std::move(made)).get();
  }
  const RoutedKey key{channel, peer, number(route, peer, true)};
  if (const auto made = network_sends_.find(key); made != network_sends_.end()) {
    return &made->second->end();
  }
  PendingSend& pending = pending_sends_[key];
  if (pending.devices.empty()) pending.devices = devices(channel, peer, route, true);
  if (pending.connection == nullptr && !connect(pending, key)) return nullptr;
  if (!pending.connection->ready()) return nullptr;
  if (seals_) {
    pending.connection = sealed(std::move(pending.connection), pending.key,
                                sizeof(executor::SlotHeader) + shape_.slot_bytes, shape_.slots);
  }
  if (pacer_) pending.connection = pacer_(std::move(pending.connection), peer, route);
  auto sender = std::make_unique<NetworkSender>(shape_, peer, std::move(pending.connection));
  executor::SendEnd* end = &sender->end();
  network_sends_[key] = std::move(sender);
  pending_sends_.erase(key);
  return end;
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
    made->memory = segment_->link(channel, reach.local_rank, self);
    made->shape = shape_;
    made->peer = peer;
    made->process = reach.process;
    return (memory_receives_[key] = std::move(made)).get();
  }
  const RoutedKey key{channel, peer, number(route, peer, false)};
  if (const auto made = network_receives_.find(key); made != network_receives_.end()) {
    return &made->second->end();
  }
  PendingReceive& pending = pending_receives_[key];
  if (pending.devices.empty()) pending.devices = devices(channel, peer, route, false);
  listen(pending, key);
  std::unique_ptr<transport::ReceiveConnection> connection = pending.listener->accept();
  if (connection == nullptr) return nullptr;
  if (seals_) {
    connection = sealed(std::move(connection), pending.key,
                        sizeof(executor::SlotHeader) + shape_.slot_bytes, shape_.slots);
  }
  auto receiver = std::make_unique<NetworkReceiver>(shape_, peer, std::move(connection));
  executor::ReceiveEnd* end = &receiver->end();
  network_receives_[key] = std::move(receiver);
  pending_receives_.erase(key);
  return end;
}

bool Links::poll() {
  bool moved = false;
  for (auto& [key, sender] : network_sends_) moved |= sender->poll();
  // Often that is all that the call waited for: a rank that only sends asks nobody.
  if (moved) return true;
  // To ask a link is a system call, so the ones that a strand waits for are asked at each turn. The
  // others only now and then: what comes over them is wanted later, but their writers may wait for
  // room in their sockets.
  const bool all = ++turns_ % kTurnsPerLook == 0;
  for (auto& [key, receiver] : network_receives_) {
    if (all || receiver->end().waited) moved |= receiver->poll();
  }
  return moved;
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
  for (auto& [key, receiver] : network_receives_) look(receiver->end());
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
