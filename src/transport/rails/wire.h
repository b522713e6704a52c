// What the two ends of a connection of `rails` tell each other: the heads of messages, and what
// follows them. Pure functions on bytes. Numbers are little-endian, as the hosts are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/transport.h"

namespace ropewalk::transport::rails {

/// Messages are cut at multiples of this. With its head a piece is what `tcp` sends without asking.
inline constexpr std::size_t kPieceBytes = std::size_t{64} << 10;
inline constexpr std::size_t kMostRails = 16;
inline constexpr std::size_t kMostDevices = 16;
/// What follows the head of anything that is no piece.
inline constexpr std::size_t kMostControlBytes = 4096;
inline constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 40;
inline constexpr std::size_t kMaxRequests = 32;
inline constexpr std::size_t kMaxGroup = 8;

/// Bytes of a message that may come before its receive is known to the sender.
inline constexpr std::size_t kEagerBytes = 2 * kPieceBytes;
/// Bounds what a receiver holds for messages without a receive. A message takes so many of them
/// besides its eager bytes.
inline constexpr std::uint64_t kCredits = std::uint64_t{4} << 20;
inline constexpr std::uint64_t kMessageCredits = 256;

enum class Kind : std::uint8_t {
  // From the sender.
  kHello = 1,  ///< the first on each rail: Hello
  kPattern,    ///< bytes of fill_pattern() with the seed `message`
  kFill,       ///< bytes of no meaning, to measure a rail with
  kProbe,      ///< asks for a snapshot; `message`: the probe's number
  kIntro,      ///< a message waits for its receive
  kPiece,      ///< bytes of a message
  // From either.
  kLost,     ///< a rail is no longer used at this end: Lost
  kBroken,   ///< this end broke the connection; `bytes` and `offset`: sizes; words
  kGoodbye,  ///< this end was closed; from the sender `message`: the number of its messages
  // From the receiver.
  kWelcome,   ///< the first on each rail: its devices
  kSnapshot,  ///< all that it has to say: Snapshot
};

/// What each message of a rail begins with.
struct Head {
  std::uint32_t mark = 0;
  Kind kind = Kind::kProbe;
  std::uint8_t summed = 0;  ///< the checksum is of what follows, too
  std::uint16_t zero = 0;
  std::uint32_t tag = 0;
  std::uint32_t following = 0;  ///< bytes that follow
  std::uint64_t message = 0;
  std::uint64_t bytes = 0;   ///< of the message
  std::uint64_t offset = 0;  ///< of the piece in its message
  std::uint64_t eager = 0;   ///< of the message: bytes that come without being asked for
  std::uint64_t checksum = 0;
};
inline constexpr std::size_t kHeadBytes = sizeof(Head);
static_assert(kHeadBytes == 56 && kHeadBytes <= kMaxHeadBytes);

/// Completes `head` for sending. `sum_following`: the checksum covers what follows.
void seal(Head& head, std::span<const std::byte> following, bool sum_following);
/// @return the head of a message that is whole; nothing for anything else. What follows it is
///         compared with its checksum where it has one.
std::optional<Head> open_head(std::span<const std::byte> message);

/// Identifies a connection: random.
using Identity = std::array<std::byte, 16>;

struct Hello {
  Identity connection{};
  std::uint32_t rail = 0;
  std::uint32_t incarnation = 0;  ///< how often the rail was made
  Handle back{};                  ///< of the sender's listener for the connection back
};

struct Lost {
  std::uint32_t rail = 0;
  std::uint32_t incarnation = 0;
  std::string why;
};

/// One rail, as the receiver sees it.
struct Arrived {
  std::uint32_t rail = 0;
  std::uint32_t incarnation = 0;
  std::uint64_t count = 0;  ///< messages of the rail that it has dealt with, in their order
  friend bool operator==(const Arrived&, const Arrived&) = default;
};

/// Complete each time, so that the last one holds, and none is missed when it is lost.
struct Snapshot {
  std::uint64_t credits = 0;  ///< returned since the beginning
  std::vector<Arrived> rails;
  std::vector<std::uint64_t> granted;  ///< messages that have their receive and are not whole
};

/// A device of an end.
struct DeviceFacts {
  std::uint8_t provider = 0;  ///< see provider_code()
  std::uint16_t fabric = 0;   ///< see fabric_code()
  float speed_mbps = 0;
  std::string name;
  Handle handle{};
};

std::vector<std::byte> encode(const Hello& hello);
std::vector<std::byte> encode(const Lost& lost);
std::vector<std::byte> encode(const Snapshot& snapshot);
std::vector<std::byte> encode(std::span<const DeviceFacts> devices);
std::optional<Hello> decode_hello(std::span<const std::byte> bytes);
std::optional<Lost> decode_lost(std::span<const std::byte> bytes);
std::optional<Snapshot> decode_snapshot(std::span<const std::byte> bytes);
std::optional<std::vector<DeviceFacts>> decode_devices(std::span<const std::byte> bytes);

/// Providers by number; 0: one that is not known.
std::uint8_t provider_code(std::string_view name);
/// Tells fabrics apart; 0: not known.
std::uint16_t fabric_code(std::string_view fabric);

/// A device of the listening end, as far as a handle says. Its number is its index in the list of
/// that end's devices.
struct Offer {
  std::uint8_t device = 0;
  std::uint8_t provider = 0;
  std::uint16_t fabric = 0;
  Handle handle{};
};
/// As many as fit into `room` bytes, the first ones first.
Handle encode_offers(std::span<const Offer> offers, std::size_t room);
/// @return nothing when this is no handle of `rails`
std::optional<std::vector<Offer>> decode_offers(const Handle& handle);

}  // namespace ropewalk::transport::rails
