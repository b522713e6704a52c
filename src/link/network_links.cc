#include "link/network_links.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "link/naming_peer.h"

namespace ropewalk::link {
namespace {

// Handles of links travel over the bootstrap under a tag for each kind, channel and route.
constexpr std::uint32_t kHandleTag = 0x4c000000;
constexpr unsigned kChannelBits = 11;
static_assert(kRouteNumbers << kChannelBits == 1U << 24U);

constexpr std::uint64_t kTurnsPerLook = 4;

}  // namespace

NetworkLinks::NetworkLinks(bootstrap::Bootstrap& bootstrap,
                           std::unique_ptr<transport::Transport> transport, Options options)
    : bootstrap_(bootstrap), options_(std::move(options)), transport_(std::move(transport)) {}

NetworkLinks::~NetworkLinks() = default;

std::uint32_t NetworkLinks::handle_tag(const Key& key) const noexcept {
  const auto& [channel, peer, route] = key;
  return (kHandleTag + (options_.tag << 24U)) | route << kChannelBits |
         static_cast<std::uint32_t>(channel);
}

NetworkSender& NetworkLinks::sender(int channel, int peer, const Route& route) {
  const Key key{channel, peer, number(route)};
  SendLink& link = sends_[key];
  if (link.sender == nullptr) {
    link.sender = std::make_unique<NetworkSender>(options_.shape, peer, options_.make_memory,
                                                  options_.by_blocks);
    link.route = route;
  }
  if (!link.sender->connected()) connect(key, link);
  return *link.sender;
}

NetworkReceiver& NetworkLinks::receiver(int channel, int peer, const Route& route) {
  const Key key{channel, peer, number(route)};
  ReceiveLink& link = receives_[key];
  if (link.receiver == nullptr) {
    link.receiver = std::make_unique<NetworkReceiver>(options_.shape, peer, options_.make_memory,
                                                      options_.by_blocks);
  }
  if (link.receiver->connected()) return *link.receiver;
  if (link.listener == nullptr) {
    naming_peer(peer, "listening for",
                [&] { link.listener = transport_->listen(device(channel, peer)); });
    const transport::Handle& handle = link.listener->handle();
    std::vector<std::byte> told(handle.begin(), handle.end());
    if (seals_) {
      link.key = make_link_key();
      told.insert(told.end(), link.key.begin(), link.key.end());
    }
    bootstrap_.send(peer, handle_tag(key), told);
  }
  accept(link);
  return *link.receiver;
}

void NetworkLinks::connect(const Key& key, SendLink& link) {
  const int channel = std::get<0>(key);
  const int peer = std::get<1>(key);
  if (link.connector == nullptr) {
    const std::optional<std::vector<std::byte>> bytes = bootstrap_.try_recv(peer, handle_tag(key));
    if (!bytes.has_value()) return;
    transport::Handle handle{};
    RW_ASSERT(bytes->size() == handle.size() + (seals_ ? link.key.size() : 0));
    std::copy_n(bytes->begin(), handle.size(), handle.begin());
    std::copy(bytes->begin() + static_cast<std::ptrdiff_t>(handle.size()), bytes->end(),
              link.key.begin());
    naming_peer(peer, "connecting to",
                [&] { link.connector = transport_->connect(device(channel, peer), handle); });
  }
  const bool ready = naming_peer(peer, "connecting to", [&] {
    if (link.connection == nullptr) link.connection = link.connector->poll();
    return link.connection != nullptr && link.connection->ready();
  });
  if (!ready) return;
  std::unique_ptr<transport::SendConnection> connection = std::move(link.connection);
  if (seals_) {
    connection =
        sealed(std::move(connection), link.key,
               sizeof(executor::SlotHeader) + options_.shape.slot_bytes, options_.shape.slots);
  }
  if (pacer_) connection = pacer_(std::move(connection), channel, peer, link.route);
  link.sender->use(std::move(connection));
  link.connector.reset();
}

void NetworkLinks::accept(ReceiveLink& link) {
  std::unique_ptr<transport::ReceiveConnection> connection =
      naming_peer(link.receiver->end().peer, "accepting", [&] { return link.listener->accept(); });
  if (connection == nullptr) return;
  if (seals_) {
    connection =
        sealed(std::move(connection), link.key,
               sizeof(executor::SlotHeader) + options_.shape.slot_bytes, options_.shape.slots);
  }
  link.receiver->use(std::move(connection));
  // The port is free again; the link stays as it is.
  link.listener.reset();
}

bool NetworkLinks::drained() {
  return std::ranges::all_of(sends_, [](auto& entry) { return entry.second.sender->drained(); });
}

bool NetworkLinks::poll() {
  bool moved = false;
  for (auto& [key, link] : sends_) {
    if (!link.sender->connected()) {
      connect(key, link);
      moved |= link.sender->connected();
    } else {
      moved |= link.sender->poll();
    }
  }
  // Often that is all that the call waited for: a rank that only sends asks nobody.
  if (moved) return true;
  // To ask a link is a system call, so the ones that a strand waits for are asked at each turn. The
  // others only now and then: what comes over them is wanted later, but their writers may wait for
  // room in their sockets.
  const bool all = ++turns_ % kTurnsPerLook == 0;
  for (auto& [key, link] : receives_) {
    if (!link.receiver->connected()) {
      accept(link);
      moved |= link.receiver->connected();
    } else if (all || link.receiver->wanted()) {
      moved |= link.receiver->poll();
    }
  }
  return moved;
}

}  // namespace ropewalk::link
