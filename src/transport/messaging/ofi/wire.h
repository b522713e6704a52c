// The messages between the two ends of a connection over the fabric: small messages, each of which
// begins with a header. Numbers are in the processor's byte order (little-endian on all that are
// built for).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "transport/transport.h"

namespace ropewalk::transport::ofi {

enum class Type : std::uint32_t {
  kEager = 1,  ///< to the receiver: a whole small message follows
  kRequest,    ///< to the receiver: a large message waits for its receive
  kDone,       ///< to the receiver: a large message has been written
  kAnnounce,   ///< to the sender: where the messages of posted receives are to be written
  kGrant,      ///< to the sender: a tagged receive is posted for a requested message
  kCredit,     ///< to the sender: more eager messages may come
  kJoined,     ///< to the receiver: several small messages follow, each behind its JoinedHeader
};

/// Message `index` of `tag` is the one that meets the receive with the same two: each end counts.
struct Header {
  std::uint32_t to = 0;     ///< number of the connection at the end that it comes to
  std::uint32_t proof = 0;  ///< that end's secret, which only its peer knows
  Type type{};
  std::uint32_t tag = 0;
  std::uint32_t index = 0;
  /// To the sender: eager credits given back. kAnnounce: the first receive's ticket, or 0.
  std::uint32_t credits = 0;
  /// Of the message; kAnnounce: room for it; kJoined: of all messages, with their headers.
  std::uint64_t bytes = 0;
  /// kEager, kDone, and kRequest of what will come as a tagged message: checksum or 0; kAnnounce:
  /// address; kGrant: tag.
  std::uint64_t value = 0;
  std::uint64_t key = 0;  ///< kAnnounce: of the memory
};
inline constexpr std::size_t kHeaderBytes = 48;
static_assert(sizeof(Header) == kHeaderBytes && std::is_trivially_copyable_v<Header>);

/// Larger messages are sent only after the receiver has posted a buffer for them. 8 KiB with the
/// head of a split message, and the header, are below what all software providers send in one piece
/// (16 KiB with their own header). (64 KiB over libfabric 2.5's tcp cost more for two copies than
/// an announcement costs.)
inline constexpr std::size_t kEagerBytes = (8 << 10) + kMaxHeadBytes;
/// Credits bound the eager messages of a connection that are in flight or held: 2 MiB.
inline constexpr std::uint64_t kEagerCredits = 4096;
constexpr std::uint64_t credits_of(std::uint64_t message_bytes) { return 1 + message_bytes / 512; }
inline constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 40;

/// Before each small message of a kJoined, whose own `tag` and `index` are unused. Such messages
/// have no checksums.
struct JoinedHeader {
  std::uint32_t tag = 0;
  std::uint32_t index = 0;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(JoinedHeader) == 16 && std::is_trivially_copyable_v<JoinedHeader>);
/// The longest messages of which a kJoined holds two, each with the head of a split message.
inline constexpr std::size_t kJoinedBytes = 4 << 10;
/// Of a kJoined, after its header.
inline constexpr std::size_t kMostJoinedBytes =
    2 * (sizeof(JoinedHeader) + kMaxHeadBytes + kJoinedBytes);
static_assert(kMostJoinedBytes >= kEagerBytes);

struct JoinedMessage {
  JoinedHeader header;
  std::span<const std::byte> data;
};
/// Takes the first message of what is left of a kJoined.
/// @return nothing, and `rest` as it was, when that does not begin with a whole message
std::optional<JoinedMessage> take_joined(std::span<const std::byte>& rest);

/// A kAnnounce may be of several receives with the same tag, room and key, whose indexes and
/// tickets follow each other. The addresses of all but the first are its payload. A provider that
/// injects 128 bytes, its own header included, still injects an announcement of so many.
inline constexpr std::size_t kMostAnnounced = 8;
/// The receives of a kAnnounce with so much payload.
constexpr std::size_t announced_in(std::size_t payload_bytes) {
  return 1 + payload_bytes / sizeof(std::uint64_t);
}

/// The longest message of which a write can tell.
inline constexpr std::uint64_t kMostBytesOfWord = 0xffff'ffff;
/// What a write carries to the receiver beside its bytes, where the provider can: which of the
/// announced receives was written, and how many bytes. It stands for a kDone.
constexpr std::uint64_t word_of(std::uint32_t ticket, std::uint64_t bytes) {
  return std::uint64_t{ticket} << 32 | bytes;
}
constexpr std::uint32_t ticket_of(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> 32);
}
constexpr std::uint64_t bytes_of(std::uint64_t word) { return word & kMostBytesOfWord; }

/// @return nothing when `bytes` bytes at `data` are not a message of this protocol
std::optional<Header> decode(const std::byte* data, std::size_t bytes);

}  // namespace ropewalk::transport::ofi
