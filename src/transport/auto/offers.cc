#include "transport/auto/offers.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/error.h"
#include "core/log.h"
#include "transport/auto/auto.h"

namespace ropewalk::transport {
namespace {

// A mark, then for each offer its kind of path, the bytes of its handle without the zeros at the
// end, those bytes; a kind of 0 ends the list.
constexpr std::array<std::byte, 4> kMark = {std::byte{'R'}, std::byte{'W'}, std::byte{'a'},
                                            std::byte{'1'}};
constexpr std::size_t kEntryHead = 2;

std::size_t used(const Handle& handle) {
  std::size_t bytes = handle.size();
  while (bytes > 0 && handle[bytes - 1] == std::byte{}) --bytes;
  return bytes;
}

// Some of the providers' handles need more room than others, and the network plugin keeps some of
// NCCL's bytes for itself.
constexpr std::size_t kRoom = 116;

Handle encode_within(const std::vector<Offer>& offers, std::size_t room) {
  Handle handle{};
  std::copy(kMark.begin(), kMark.end(), handle.begin());
  std::size_t at = kMark.size();
  for (const Offer& offer : offers) {
    const std::size_t bytes = used(offer.handle);
    if (at + kEntryHead + bytes > room) {
      log::info(log::kNet, "auto: the handle has no room for {}", name(offer.kind));
      continue;
    }
    handle[at] = static_cast<std::byte>(offer.kind);
    handle[at + 1] = static_cast<std::byte>(bytes);
    std::memcpy(handle.data() + at + kEntryHead, offer.handle.data(), bytes);
    at += kEntryHead + bytes;
  }
  return handle;
}

}  // namespace

std::string_view name(PathKind kind) noexcept {
  switch (kind) {
    case PathKind::kShm: return "shm";
    case PathKind::kSisci: return "sisci";
    case PathKind::kTcp: return "tcp";
    case PathKind::kOfi: return "ofi";
    case PathKind::kPsm2: return "psm2";
  }
  return "?";
}

Handle encode(const std::vector<Offer>& offers) { return encode_within(offers, kRoom); }

std::optional<std::vector<Offer>> decode_offers(const Handle& handle) {
  if (!std::equal(kMark.begin(), kMark.end(), handle.begin())) return std::nullopt;
  std::vector<Offer> offers;
  for (std::size_t at = kMark.size(); at + kEntryHead < handle.size();) {
    const auto kind = std::to_integer<std::uint8_t>(handle[at]);
    const auto bytes = std::to_integer<std::size_t>(handle[at + 1]);
    if (kind == 0) break;
    if (kind > static_cast<std::uint8_t>(PathKind::kPsm2) ||
        at + kEntryHead + bytes > handle.size()) {
      return std::nullopt;
    }
    Offer offer{static_cast<PathKind>(kind), {}};
    std::memcpy(offer.handle.data(), handle.data() + at + kEntryHead, bytes);
    offers.push_back(offer);
    at += kEntryHead + bytes;
  }
  if (offers.empty()) return std::nullopt;
  return offers;
}

Handle shortened(const Handle& handle, std::size_t room) {
  const std::size_t bytes = used(handle);
  if (bytes <= room) return handle;
  const std::optional<std::vector<Offer>> offers = decode_offers(handle);
  const Handle shorter = offers ? encode_within(*offers, room) : handle;
  if (!offers || !decode_offers(shorter)) {
    throw Error(Errc::kInvalidUsage,
                "the transport's handle takes {} bytes, and there is room for {}", bytes, room);
  }
  return shorter;
}

}  // namespace ropewalk::transport
