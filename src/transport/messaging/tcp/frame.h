// The wire format: the greeting that opens each stream, and the frames that follow it. Pure
// functions on bytes; nothing here touches a socket. Numbers are little-endian.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace ropewalk::transport::tcp {

/// Proves that its holder was given the listener's handle.
using Token = std::array<std::byte, 16>;
/// Proves a listener to who connects. Half as long, as handles have little room: it is guessed at
/// the first try or not at all.
using Reply = std::array<std::byte, 8>;

inline constexpr std::size_t kMaxStreams = 16;

/// The first bytes of every stream, from the connecting side.
struct Hello {
  Token token{};       ///< the listener's
  Token connection{};  ///< random; equal for the streams of one connection
  std::uint16_t stream = 0;
  std::uint16_t streams = 0;
};
inline constexpr std::size_t kHelloBytes = 48;
std::array<std::byte, kHelloBytes> encode(const Hello& hello);

enum class HelloState { kStranger, kIncomplete, kProven };

/// Checks the bytes that have arrived so far. A stranger is recognised by its first wrong byte; no
/// more is read from it. `hello` is filled when the answer is kProven.
HelloState judge_hello(std::span<const std::byte> bytes, const Token& token, Hello& hello);

/// The listener's answer on every stream.
inline constexpr std::size_t kReplyBytes = 16;
std::array<std::byte, kReplyBytes> encode(const Reply& reply);
bool is_reply(std::span<const std::byte, kReplyBytes> bytes, const Reply& reply);

enum class FrameType : std::uint32_t {
  kEager = 1,  ///< to the receiver: a whole small message follows
  kRequest,    ///< to the receiver: a message waits for a receive
  kData,       ///< to the receiver: a piece of the message for receive `id` follows
  kAnnounce,   ///< to the sender: receive `id` was posted
  kGrant,      ///< to the sender: the message of request `number` goes to receive `id`
  kCredit,     ///< to the sender: more eager messages may come
  kBroken,     ///< to the sender: a message of `bytes` did not fit into `offset` bytes
};

struct Frame {
  FrameType type = FrameType::kEager;
  std::uint32_t tag = 0;
  std::uint64_t id = 0;      ///< of a posted receive
  std::uint64_t number = 0;  ///< kEager, kRequest, kGrant: the message's; else the last one seen
  std::uint64_t bytes = 0;   ///< of the message; kAnnounce: room for it
  std::uint64_t offset = 0;  ///< kData: where in the message the piece belongs
  std::uint64_t piece = 0;  ///< bytes that follow this frame; to the sender: eager credits returned
  std::uint64_t checksum = 0;
};
inline constexpr std::size_t kFrameBytes = 56;

/// Larger messages wait for their receive; smaller ones are held by the receiver, if need be. A
/// chunk of a collective, which is 64 KiB over a network, goes at once with what stands before it:
/// waiting for the receiver's word takes broadcasts and gathers twice as long.
inline constexpr std::size_t kEagerBytes = 65 << 10;
/// Credits bound the eager messages that are in flight or held by the receiver: to 2 MiB. That
/// is many short ones: ranks that share cores then take turns of many messages each.
inline constexpr std::uint64_t kEagerCredits = 4096;
constexpr std::uint64_t credits_of(std::uint64_t message_bytes) { return 1 + message_bytes / 512; }
/// Larger messages are cut into pieces of this size, which may take different streams.
inline constexpr std::size_t kPieceBytes = 256 << 10;
inline constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 40;

std::array<std::byte, kFrameBytes> encode(const Frame& frame);

/// Which end reads.
enum class Reader { kReceiver, kSender };

/// @return a frame whose lengths are bounded and agree with each other; nothing when the bytes are
///         no frame that may come to `reader`
std::optional<Frame> decode(std::span<const std::byte, kFrameBytes> bytes, Reader reader);

}  // namespace ropewalk::transport::tcp
