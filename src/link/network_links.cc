#include "link/network_links.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "link/gpu_slot_link.h"
#include "link/naming_peer.h"

namespace ropewalk::link {
namespace {

// Handles of links travel over the bootstrap under a tag for each kind, channel and route.
constexpr std::uint32_t kHandleTag = 0x4c000000;
constexpr unsigned kChannelBits = 11;
static_assert(kRouteNumbers << kChannelBits == 1U << 24U);

// By which a sender says that it does not get to a receiver: of the attempt with this number.
constexpr std::uint32_t kLostTag = 0x4f000000;
// A system repeats what got no answer after 1 s and after 3.
constexpr std::chrono::seconds kConnectTime{4};

constexpr int kMostDevices = 64;
static_assert(1 + kMostDevices * kMostDevices <= kRouteNumbers);

constexpr std::uint64_t kTurnsPerLook = 4;
// With blocks: a link that has moved nothing in so many looks is looked at once in so many turns.
constexpr unsigned kTurnsUntilRest = 256;
constexpr std::uint64_t kRestTurns = 16;

}  // namespace

NetworkLinks::NetworkLinks(bootstrap::Bootstrap& bootstrap,
                           std::unique_ptr<transport::Transport> transport, Options options)
    : bootstrap_(bootstrap), options_(std::move(options)), transport_(std::move(transport)) {}

NetworkLinks::~NetworkLinks() = default;

std::uint32_t NetworkLinks::tag_of(std::uint32_t kind, const Key& key) const noexcept {
  const auto& [channel, peer, route] = key;
  return (kind + (options_.tag << 24U)) | route << kChannelBits |
         static_cast<std::uint32_t>(channel);
}

std::optional<Rails::Pair> NetworkLinks::named_by(const Route& route, int peer, bool sends) const {
  if (pacer_ || !nics_of_route_ || route.empty()) return std::nullopt;
  const RouteNics nics = nics_of_route_(route);
  const int self = bootstrap_.rank();
  return rails_.through(self, peer, sends ? nics.exit : nics.entry, sends ? nics.entry : nics.exit,
                        sends ? self : peer);
}

std::uint32_t NetworkLinks::number(const Route& route, int peer, bool sends) const {
  if (pacer_) return route_number(route);
  const std::optional<Rails::Pair> named = named_by(route, peer, sends);
  if (!named.has_value()) return 0;
  RW_ASSERT(named->own < kMostDevices && named->peers < kMostDevices);
  const int from = sends ? named->own : named->peers;
  const int to = sends ? named->peers : named->own;
  return static_cast<std::uint32_t>(1 + from * kMostDevices + to);
}

std::vector<Rails::Pair> NetworkLinks::devices(int channel, int peer, const Route& route,
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

std::string NetworkLinks::device_name(const Rails::Pair& pair) const {
  return pair.own < transport_->num_devices() ? transport_->properties(pair.own).name
                                              : transport_->name();
}

std::string NetworkLinks::nic(int channel, int peer) const {
  return device_name(devices(channel, peer, {}, true).front());
}

std::unique_ptr<NetworkSender> NetworkLinks::make_sender(int peer) const {
  const FifoMaker& memory = options_.make_memory;
  if (options_.flagged) return std::make_unique<FlaggedSender>(peer, memory, options_.tags);
  if (options_.gpu_slots != nullptr) {
    return std::make_unique<GpuSlotSender>(options_.shape, peer, memory, *options_.gpu_slots);
  }
  return std::make_unique<NetworkSender>(options_.shape, peer, memory, options_.by_blocks);
}

std::unique_ptr<NetworkReceiver> NetworkLinks::make_receiver(int peer) const {
  const FifoMaker& memory = options_.make_memory;
  if (options_.flagged) return std::make_unique<FlaggedReceiver>(peer, memory, options_.tags);
  if (options_.gpu_slots != nullptr) {
    return std::make_unique<GpuSlotReceiver>(options_.shape, peer, memory, *options_.gpu_slots);
  }
  return std::make_unique<NetworkReceiver>(options_.shape, peer, memory, options_.by_blocks);
}

NetworkSender& NetworkLinks::sender(int channel, int peer, const Route& route) {
  const Key key{channel, peer, number(route, peer, true)};
  SendLink& link = sends_[key];
  if (link.sender == nullptr) {
    link.sender = make_sender(peer);
    link.route = route;
    link.devices = devices(channel, peer, route, true);
  }
  if (!link.sender->connected()) connect(key, link);
  return *link.sender;
}

NetworkReceiver& NetworkLinks::receiver(int channel, int peer, const Route& route) {
  const Key key{channel, peer, number(route, peer, false)};
  ReceiveLink& link = receives_[key];
  if (link.receiver == nullptr) {
    link.receiver = make_receiver(peer);
    link.devices = devices(channel, peer, route, false);
  }
  if (!link.receiver->connected()) accept(key, link);
  return *link.receiver;
}

std::size_t NetworkLinks::message_bytes() const noexcept {
  return options_.flagged ? kFlaggedMessageBytes
                          : sizeof(executor::SlotHeader) + options_.shape.slot_bytes;
}

std::uint32_t NetworkLinks::messages() const noexcept {
  return options_.flagged ? kFlaggedMessages : options_.shape.slots;
}

bool NetworkLinks::dial(const Key& key, SendLink& link) {
  const int peer = std::get<1>(key);
  const std::optional<std::vector<std::byte>> told =
      bootstrap_.try_recv(peer, tag_of(kHandleTag, key));
  if (!told.has_value() && link.connector == nullptr) return false;
  try {
    if (told.has_value()) {
      transport::Handle handle{};
      RW_ASSERT(told->size() == 1 + handle.size() + (seals_ ? link.key.size() : 0));
      link.attempt = std::to_integer<std::size_t>(told->front());
      RW_ASSERT(link.attempt < link.devices.size());
      const auto at = told->begin() + 1;
      std::copy_n(at, handle.size(), handle.begin());
      std::copy(at + static_cast<std::ptrdiff_t>(handle.size()), told->end(), link.key.begin());
      link.begun = std::chrono::steady_clock::now();
      link.connector = transport_->connect(link.devices[link.attempt].own, handle);
    }
    link.connection = link.connector->poll();
    if (link.connection != nullptr) return true;
    const bool has_others = link.devices.size() > 1;
    if (has_others && std::chrono::steady_clock::now() - link.begun > kConnectTime) {
      throw Error(Errc::kPeerLost, "no answer in {} s", kConnectTime.count());
    }
    return false;
  } catch (const Error& error) {
    link.connector.reset();
    const std::string words =
        fmt::format("rank {} does not reach rank {} over {}: {}", bootstrap_.rank(), peer,
                    device_name(link.devices[link.attempt]), error.what());
    if (link.attempt + 1 == link.devices.size()) throw Error(error.code(), "{}", words);
    log::warn("{}; using another NIC", words);
    const auto attempt = static_cast<std::byte>(link.attempt);
    bootstrap_.send(peer, tag_of(kLostTag, key), std::span(&attempt, 1));
    return false;
  }
}

void NetworkLinks::connect(const Key& key, SendLink& link) {
  const int channel = std::get<0>(key);
  const int peer = std::get<1>(key);
  if (link.connection == nullptr && !dial(key, link)) return;
  if (!naming_peer(peer, "connecting to", [&] { return link.connection->ready(); })) return;
  std::unique_ptr<transport::SendConnection> connection = std::move(link.connection);
  if (seals_) {
    connection = sealed(std::move(connection), link.key, message_bytes(), messages());
  }
  if (pacer_) connection = pacer_(std::move(connection), channel, peer, link.route);
  link.sender->use(std::move(connection));
  if (traffic_ != nullptr) {
    const std::string nic = device_name(link.devices[link.attempt]);
    const std::string over =
        nic == transport_->name() ? nic : fmt::format("{} {}", transport_->name(), nic);
    link.sender->count_in(traffic_->to(peer, over));
  }
  link.connector.reset();
}

void NetworkLinks::listen(const Key& key, ReceiveLink& link) {
  const int peer = std::get<1>(key);
  const auto take_next = [&](const std::string& words, Errc code) {
    link.listener.reset();
    if (++link.attempt == link.devices.size()) throw Error(code, "{}", words);
  };
  while (const std::optional<std::vector<std::byte>> lost =
             bootstrap_.try_recv(peer, tag_of(kLostTag, key))) {
    if (std::to_integer<std::size_t>(lost->front()) != link.attempt) continue;
    take_next(fmt::format("rank {} is not reached by rank {} over {}", bootstrap_.rank(), peer,
                          device_name(link.devices[link.attempt])),
              Errc::kPeerLost);
  }
  while (link.listener == nullptr) {
    const Rails::Pair& pair = link.devices[link.attempt];
    try {
      link.listener = transport_->listen(pair.own);
    } catch (const Error& error) {
      const std::string words =
          fmt::format("rank {} cannot be reached by rank {} over {}: {}", bootstrap_.rank(), peer,
                      device_name(pair), error.what());
      take_next(words, error.code());
      log::warn("{}; using another NIC", words);
      continue;
    }
    const transport::Handle& handle = link.listener->handle();
    std::vector<std::byte> told = {static_cast<std::byte>(link.attempt)};
    told.insert(told.end(), handle.begin(), handle.end());
    if (seals_) {
      link.key = make_link_key();
      told.insert(told.end(), link.key.begin(), link.key.end());
    }
    bootstrap_.send(peer, tag_of(kHandleTag, key), told);
  }
}

void NetworkLinks::accept(const Key& key, ReceiveLink& link) {
  listen(key, link);
  std::unique_ptr<transport::ReceiveConnection> connection =
      naming_peer(std::get<1>(key), "accepting", [&] { return link.listener->accept(); });
  if (connection == nullptr) return;
  if (seals_) {
    connection = sealed(std::move(connection), link.key, message_bytes(), messages());
  }
  link.receiver->use(std::move(connection));
  // The port is free again; the link stays as it is.
  link.listener.reset();
}

bool NetworkLinks::sleep(std::chrono::nanoseconds at_most) {
  descriptors_.clear();
  for (auto& [key, link] : sends_) {
    if (!link.sender->connected() || !link.sender->add_descriptors(descriptors_)) return false;
  }
  for (auto& [key, link] : receives_) {
    if (!link.receiver->connected() || !link.receiver->add_descriptors(descriptors_)) return false;
  }
  if (descriptors_.empty()) return false;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  const timespec limit{seconds.count(), (at_most - seconds).count()};
  (void)ppoll(descriptors_.data(), descriptors_.size(), &limit, nullptr);
  // Whichever link it was, the next turn looks at it.
  turns_ = kTurnsPerLook - 1;
  return true;
}

bool NetworkLinks::connected() const {
  const auto is = [](const auto& end) { return end->connected(); };
  return std::ranges::all_of(sends_, [&](auto& entry) { return is(entry.second.sender); }) &&
         std::ranges::all_of(receives_, [&](auto& entry) { return is(entry.second.receiver); });
}

bool NetworkLinks::drained() {
  return std::ranges::all_of(sends_, [](auto& entry) { return entry.second.sender->drained(); });
}

void NetworkLinks::close_senders() { sends_.clear(); }

void NetworkLinks::forget(int peer) {
  const auto is_of_peer = [peer](const auto& entry) { return std::get<1>(entry.first) == peer; };
  std::erase_if(sends_, is_of_peer);
  std::erase_if(receives_, is_of_peer);
}

bool NetworkLinks::is_due(const Rest& rest) const noexcept {
  if (!options_.by_blocks || rest.turns < kTurnsUntilRest) return true;
  return (turns_ + rest.turns) % kRestTurns == 0;
}

bool NetworkLinks::poll() {
  bool moved = false;
  if (options_.by_blocks) ++turns_;
  for (auto& [key, link] : sends_) {
    if (!link.sender->connected()) {
      connect(key, link);
      moved |= link.sender->connected();
    } else if (is_due(link.rest)) {
      const bool moves = link.sender->poll();
      link.rest.count(moves);
      moved |= moves;
    }
  }
  // Often that is all that the call waited for: a rank that only sends asks nobody.
  if (moved && !options_.by_blocks) return true;
  // Polling a link takes a system call, so each turn polls only the links that a strand waits for.
  // The others are polled now and then: their data is needed later, but their writers may wait for
  // room in their sockets.
  const bool all = !options_.by_blocks && ++turns_ % kTurnsPerLook == 0;
  for (auto& [key, link] : receives_) {
    if (!link.receiver->connected()) {
      accept(key, link);
      moved |= link.receiver->connected();
    } else if (options_.by_blocks ? is_due(link.rest) : all || link.receiver->wanted()) {
      const bool moves = link.receiver->poll();
      link.rest.count(moves);
      moved |= moves;
    }
  }
  return moved;
}

}  // namespace ropewalk::link
