#include "transport/rails/wire.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/digest.h"
#include "transport/checksum.h"
#include "transport/rails/rails.h"

namespace ropewalk::transport::rails {
namespace {

constexpr std::uint32_t kMark = 0x52576c31;
constexpr std::array<std::byte, 4> kHandleMark = {std::byte{'R'}, std::byte{'W'}, std::byte{'l'},
                                                  std::byte{'1'}};
// Others' handles need room beside these, and the network plugin keeps some of NCCL's bytes.
constexpr std::size_t kHandleRoom = 116;
constexpr std::size_t kOfferHead = 5;
constexpr std::array<std::string_view, 7> kProviders = {"",    "shm",  "cuda_ipc", "sisci",
                                                        "ofi", "psm2", "tcp"};
// Text that an end sends is cut here.
constexpr std::size_t kMostText = 1024;

static_assert(std::has_unique_object_representations_v<Head>);

std::uint64_t sum_of(Head head, std::span<const std::byte> following) {
  head.checksum = 0;
  std::uint64_t sum = checksum(&head, sizeof head);
  if (head.summed != 0) sum ^= checksum(following.data(), following.size()) * 3;
  return sum;
}

class Writer {
 public:
  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    put_bytes(std::as_bytes(std::span(&value, 1)));
  }
  void put_bytes(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void put_text(std::string_view text) {
    text = text.substr(0, kMostText);
    put(static_cast<std::uint16_t>(text.size()));
    put_bytes(std::as_bytes(std::span(text)));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// After the end every number is 0, and ok() false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T get() {
    T value{};
    const std::span<const std::byte> from = get_bytes(sizeof value);
    if (ok_) std::memcpy(&value, from.data(), sizeof value);
    return value;
  }
  std::span<const std::byte> get_bytes(std::size_t count) {
    if (count > bytes_.size()) {
      ok_ = false;
      return {};
    }
    const std::span<const std::byte> taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }
  std::string get_text() {
    const std::span<const std::byte> text = get_bytes(get<std::uint16_t>());
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }
  [[nodiscard]] bool ok() const { return ok_; }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

std::size_t used(const Handle& handle) {
  std::size_t bytes = handle.size();
  while (bytes > 0 && handle[bytes - 1] == std::byte{}) --bytes;
  return bytes;
}

}  // namespace

void seal(Head& head, std::span<const std::byte> following, bool sum_following) {
  head.mark = kMark;
  head.following = static_cast<std::uint32_t>(following.size());
  head.summed = sum_following ? 1 : 0;
  head.checksum = sum_of(head, following);
}

std::optional<Head> open_head(std::span<const std::byte> message) {
  Head head;
  if (message.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, message.data(), sizeof head);
  const std::span<const std::byte> following = message.subspan(sizeof head);
  if (head.mark != kMark || head.following != following.size() || head.kind < Kind::kHello ||
      head.kind > Kind::kSnapshot || head.checksum != sum_of(head, following)) {
    return std::nullopt;
  }
  return head;
}

std::vector<std::byte> encode(const Hello& hello) {
  Writer out;
  out.put(hello.connection);
  out.put(hello.rail);
  out.put(hello.incarnation);
  out.put(hello.back);
  return out.take();
}

std::optional<Hello> decode_hello(std::span<const std::byte> bytes) {
  Reader in(bytes);
  Hello hello;
  hello.connection = in.get<Identity>();
  hello.rail = in.get<std::uint32_t>();
  hello.incarnation = in.get<std::uint32_t>();
  hello.back = in.get<Handle>();
  if (!in.ok() || hello.rail >= kMostRails) return std::nullopt;
  return hello;
}

std::vector<std::byte> encode(const Lost& lost) {
  Writer out;
  out.put(lost.rail);
  out.put(lost.incarnation);
  out.put_text(lost.why);
  return out.take();
}

std::optional<Lost> decode_lost(std::span<const std::byte> bytes) {
  Reader in(bytes);
  Lost lost;
  lost.rail = in.get<std::uint32_t>();
  lost.incarnation = in.get<std::uint32_t>();
  lost.why = in.get_text();
  if (!in.ok()) return std::nullopt;
  return lost;
}

std::vector<std::byte> encode(const Snapshot& snapshot) {
  Writer out;
  out.put(snapshot.credits);
  out.put(static_cast<std::uint32_t>(snapshot.rails.size()));
  for (const Arrived& rail : snapshot.rails) {
    out.put(rail.rail);
    out.put(rail.incarnation);
    out.put(rail.count);
  }
  out.put(static_cast<std::uint32_t>(snapshot.granted.size()));
  for (const std::uint64_t message : snapshot.granted) out.put(message);
  return out.take();
}

std::optional<Snapshot> decode_snapshot(std::span<const std::byte> bytes) {
  Reader in(bytes);
  Snapshot snapshot;
  snapshot.credits = in.get<std::uint64_t>();
  const auto rails = in.get<std::uint32_t>();
  if (rails > kMostRails) return std::nullopt;
  for (std::uint32_t i = 0; i < rails; ++i) {
    Arrived& rail = snapshot.rails.emplace_back();
    rail.rail = in.get<std::uint32_t>();
    rail.incarnation = in.get<std::uint32_t>();
    rail.count = in.get<std::uint64_t>();
  }
  const auto granted = in.get<std::uint32_t>();
  if (granted > kMaxRequests * kMaxGroup) return std::nullopt;
  for (std::uint32_t i = 0; i < granted; ++i) snapshot.granted.push_back(in.get<std::uint64_t>());
  if (!in.ok()) return std::nullopt;
  return snapshot;
}

std::vector<std::byte> encode(std::span<const DeviceFacts> devices) {
  Writer out;
  devices = devices.first(std::min(devices.size(), kMostDevices));
  out.put(static_cast<std::uint8_t>(devices.size()));
  for (const DeviceFacts& device : devices) {
    out.put(device.provider);
    out.put(device.fabric);
    out.put(device.speed_mbps);
    out.put_text(std::string_view(device.name).substr(0, 32));
    out.put(static_cast<std::uint8_t>(used(device.handle)));
    out.put_bytes(std::span(device.handle).first(used(device.handle)));
  }
  return out.take();
}

std::optional<std::vector<DeviceFacts>> decode_devices(std::span<const std::byte> bytes) {
  Reader in(bytes);
  const auto count = in.get<std::uint8_t>();
  if (count > kMostDevices) return std::nullopt;
  std::vector<DeviceFacts> devices(count);
  for (DeviceFacts& device : devices) {
    device.provider = in.get<std::uint8_t>();
    device.fabric = in.get<std::uint16_t>();
    device.speed_mbps = in.get<float>();
    device.name = in.get_text();
    const std::size_t length = in.get<std::uint8_t>();
    if (length > device.handle.size()) return std::nullopt;
    const std::span<const std::byte> handle = in.get_bytes(length);
    std::copy(handle.begin(), handle.end(), device.handle.begin());
  }
  if (!in.ok()) return std::nullopt;
  return devices;
}

std::uint8_t provider_code(std::string_view name) {
  const auto* const found = std::find(kProviders.begin(), kProviders.end(), name);
  return found == kProviders.end() ? 0 : static_cast<std::uint8_t>(found - kProviders.begin());
}

std::uint16_t fabric_code(std::string_view fabric) {
  if (fabric.empty()) return 0;
  return std::max<std::uint16_t>(1, static_cast<std::uint16_t>(digest(fabric) >> 16));
}

Handle encode_offers(std::span<const Offer> offers, std::size_t room) {
  Handle handle{};
  std::copy(kHandleMark.begin(), kHandleMark.end(), handle.begin());
  std::size_t at = kHandleMark.size();
  for (const Offer& offer : offers) {
    const std::size_t bytes = used(offer.handle);
    if (at + kOfferHead + bytes > std::min(room, kHandleRoom)) continue;
    handle[at] = static_cast<std::byte>(offer.device);
    handle[at + 1] = static_cast<std::byte>(offer.provider);
    std::memcpy(&handle[at + 2], &offer.fabric, sizeof offer.fabric);
    handle[at + 4] = static_cast<std::byte>(bytes);
    std::memcpy(&handle[at + kOfferHead], offer.handle.data(), bytes);
    at += kOfferHead + bytes;
  }
  return handle;
}

std::optional<std::vector<Offer>> decode_offers(const Handle& handle) {
  if (!std::equal(kHandleMark.begin(), kHandleMark.end(), handle.begin())) return std::nullopt;
  std::vector<Offer> offers;
  for (std::size_t at = kHandleMark.size(); at + kOfferHead < handle.size();) {
    Offer offer;
    offer.device = std::to_integer<std::uint8_t>(handle[at]);
    offer.provider = std::to_integer<std::uint8_t>(handle[at + 1]);
    std::memcpy(&offer.fabric, &handle[at + 2], sizeof offer.fabric);
    const auto bytes = std::to_integer<std::size_t>(handle[at + 4]);
    if (bytes == 0) break;
    if (offer.device >= kMostDevices || at + kOfferHead + bytes > handle.size()) {
      return std::nullopt;
    }
    std::memcpy(offer.handle.data(), &handle[at + kOfferHead], bytes);
    offers.push_back(offer);
    at += kOfferHead + bytes;
  }
  if (offers.empty()) return std::nullopt;
  return offers;
}

Handle shortened(const Handle& handle, std::size_t room) {
  const std::optional<std::vector<Offer>> offers = decode_offers(handle);
  if (!offers || used(handle) <= room) return handle;
  return encode_offers(*offers, room);
}

}  // namespace ropewalk::transport::rails
