// The messages between the two ends of a connection over the fabric: small messages, each of which
// begins with a header. Numbers are in the processor's byte order (little-endian on all that are
// built for).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

namespace ropewalk::transport::ofi {

enum class Type : std::uint32_t {
  kEager = 1,  ///< to the receiver: a whole small message follows
  kRequest,    ///< to the receiver: a large message waits for its receive
  kDone,       ///< to the receiver: a large message has been written
  kAnnounce,   ///< to the sender: where the message of a posted receive is to be written
  kGrant,      ///< to the sender: a tagged receive is posted for a requested message
  kCredit,     ///< to the sender: more eager messages may come
};

/// Message `index` of `tag` is the one that meets the receive with the same two: each end counts.
struct Header {
  std::uint32_t to = 0;     ///< number of the connection at the end that it comes to
  std::uint32_t proof = 0;  ///< that end's; whoever does not know it is no peer
  Type type{};
  std::uint32_t tag = 0;
  std::uint32_t index = 0;
  std::uint32_t credits = 0;  ///< to the sender: eager credits given back
  std::uint64_t bytes = 0;    ///< of the message; kAnnounce: room for it
  std::uint64_t value = 0;    ///< kEager, kDone: checksum or 0; kAnnounce: address; kGrant: tag
  std::uint64_t key = 0;      ///< kAnnounce: of the memory
};
inline constexpr std::size_t kHeaderBytes = 48;
static_assert(sizeof(Header) == kHeaderBytes && std::is_trivially_copyable_v<Header>);

/// Larger messages are sent only after the receiver has posted a buffer for them. 8 KiB and the
/// header are below what all software providers send in one piece (16 KiB with their own header).
inline constexpr std::size_t kEagerBytes = 8 << 10;
/// Credits bound the eager messages of a connection that are in flight or held: 2 MiB.
inline constexpr std::uint64_t kEagerCredits = 4096;
constexpr std::uint64_t credits_of(std::uint64_t message_bytes) { return 1 + message_bytes / 512; }
inline constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 40;

/// @return nothing when `bytes` bytes at `data` are not a message of this protocol
std::optional<Header> decode(const std::byte* data, std::size_t bytes);

}  // namespace ropewalk::transport::ofi
