#include "transport/messaging/ofi/wire.h"

#include <cstring>

namespace ropewalk::transport::ofi {

std::optional<Header> decode(const std::byte* data, std::size_t bytes) {
  if (bytes < kHeaderBytes) return std::nullopt;
  Header header;
  std::memcpy(&header, data, kHeaderBytes);
  const auto type = static_cast<std::uint32_t>(header.type);
  if (type < static_cast<std::uint32_t>(Type::kEager) ||
      type > static_cast<std::uint32_t>(Type::kCredit)) {
    return std::nullopt;
  }
  const std::size_t payload = bytes - kHeaderBytes;
  if (header.bytes > kMaxMessageBytes) return std::nullopt;
  if (header.type == Type::kAnnounce) {
    if (payload % sizeof(std::uint64_t) != 0 || announced_in(payload) > kMostAnnounced) {
      return std::nullopt;
    }
    return header;
  }
  const std::uint64_t expected = header.type == Type::kEager ? header.bytes : 0;
  if (payload != expected || header.credits > kEagerCredits) return std::nullopt;
  return header;
}

}  // namespace ropewalk::transport::ofi
