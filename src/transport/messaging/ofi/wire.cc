#include "transport/messaging/ofi/wire.h"

#include <cstring>

namespace ropewalk::transport::ofi {

std::optional<Header> decode(const std::byte* data, std::size_t bytes) {
  if (bytes < kHeaderBytes) return std::nullopt;
  Header header;
  std::memcpy(&header, data, kHeaderBytes);
  const auto type = static_cast<std::uint32_t>(header.type);
  if (type < static_cast<std::uint32_t>(Type::kEager) ||
      type > static_cast<std::uint32_t>(Type::kJoined)) {
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
  const bool has_payload = header.type == Type::kEager || header.type == Type::kJoined;
  const std::uint64_t expected = has_payload ? header.bytes : 0;
  if (payload != expected || header.credits > kEagerCredits) return std::nullopt;
  return header;
}

std::optional<JoinedMessage> take_joined(std::span<const std::byte>& rest) {
  JoinedMessage first;
  if (rest.size() < sizeof first.header) return std::nullopt;
  std::memcpy(&first.header, rest.data(), sizeof first.header);
  const std::span<const std::byte> behind = rest.subspan(sizeof first.header);
  if (first.header.bytes > behind.size()) return std::nullopt;
  first.data = behind.first(first.header.bytes);
  rest = behind.subspan(first.header.bytes);
  return first;
}

}  // namespace ropewalk::transport::ofi
