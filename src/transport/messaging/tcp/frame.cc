#include "transport/messaging/tcp/frame.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/same_secret.h"

namespace ropewalk::transport::tcp {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are written as they lie");

constexpr std::array<char, 8> kHelloMagic = {'R', 'W', 'T', 'C', 'P', 'v', '2', '>'};
constexpr std::array<char, 8> kReplyMagic = {'R', 'W', 'T', 'C', 'P', 'v', '2', '<'};

// Appends values to a buffer of known size, or takes them from one.
class Writer {
 public:
  explicit Writer(std::byte* at) : at_(at) {}
  template <typename T>
  Writer& put(const T& value) {
    std::memcpy(at_, &value, sizeof value);
    at_ += sizeof value;
    return *this;
  }

 private:
  std::byte* at_;
};

class Taker {
 public:
  explicit Taker(const std::byte* at) : at_(at) {}
  template <typename T>
  Taker& take(T& value) {
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return *this;
  }

 private:
  const std::byte* at_;
};

bool valid_to_receiver(const Frame& frame) {
  switch (frame.type) {
    case FrameType::kEager:
      return frame.bytes <= kEagerBytes && frame.piece == frame.bytes && frame.offset == 0;
    case FrameType::kRequest:
      return frame.bytes <= kMaxMessageBytes && frame.piece == 0 && frame.offset == 0;
    case FrameType::kData:
      return frame.bytes <= kMaxMessageBytes && frame.piece <= kPieceBytes &&
             frame.offset <= frame.bytes && frame.piece <= frame.bytes - frame.offset &&
             (frame.piece > 0 || frame.bytes == 0);
    case FrameType::kAnnounce:
    case FrameType::kGrant:
    case FrameType::kCredit:
    case FrameType::kBroken: return false;
  }
  return false;
}

bool valid_to_sender(const Frame& frame) {
  switch (frame.type) {
    case FrameType::kAnnounce:
    case FrameType::kGrant:
    case FrameType::kCredit: return frame.piece <= kEagerCredits && frame.bytes <= kMaxMessageBytes;
    case FrameType::kBroken: return true;
    case FrameType::kEager:
    case FrameType::kRequest:
    case FrameType::kData: return false;
  }
  return false;
}

}  // namespace

std::array<std::byte, kHelloBytes> encode(const Hello& hello) {
  std::array<std::byte, kHelloBytes> bytes{};
  Writer(bytes.data())
      .put(kHelloMagic)
      .put(hello.token)
      .put(hello.connection)
      .put(hello.stream)
      .put(hello.streams);
  return bytes;
}

HelloState judge_hello(std::span<const std::byte> bytes, const Token& token, Hello& hello) {
  const std::size_t compared = std::min(bytes.size(), kHelloMagic.size());
  if (compared > 0 && std::memcmp(bytes.data(), kHelloMagic.data(), compared) != 0) {
    return HelloState::kStranger;
  }
  if (bytes.size() < kHelloBytes) return HelloState::kIncomplete;
  std::array<char, 8> magic{};
  Taker(bytes.data())
      .take(magic)
      .take(hello.token)
      .take(hello.connection)
      .take(hello.stream)
      .take(hello.streams);
  const bool sane =
      hello.streams >= 1 && hello.streams <= kMaxStreams && hello.stream < hello.streams;
  return sane && same_secret(hello.token, token) ? HelloState::kProven : HelloState::kStranger;
}

std::array<std::byte, kReplyBytes> encode(const Reply& reply) {
  std::array<std::byte, kReplyBytes> bytes{};
  Writer(bytes.data()).put(kReplyMagic).put(reply);
  return bytes;
}

bool is_reply(std::span<const std::byte, kReplyBytes> bytes, const Reply& reply) {
  std::array<char, 8> magic{};
  Reply sent{};
  Taker(bytes.data()).take(magic).take(sent);
  return magic == kReplyMagic && same_secret(sent, reply);
}

std::array<std::byte, kFrameBytes> encode(const Frame& frame) {
  std::array<std::byte, kFrameBytes> bytes{};
  Writer(bytes.data())
      .put(frame.type)
      .put(frame.tag)
      .put(frame.id)
      .put(frame.number)
      .put(frame.bytes)
      .put(frame.offset)
      .put(frame.piece)
      .put(frame.checksum);
  return bytes;
}

std::optional<Frame> decode(std::span<const std::byte, kFrameBytes> bytes, Reader reader) {
  Frame frame;
  std::uint32_t type = 0;
  Taker(bytes.data())
      .take(type)
      .take(frame.tag)
      .take(frame.id)
      .take(frame.number)
      .take(frame.bytes)
      .take(frame.offset)
      .take(frame.piece)
      .take(frame.checksum);
  if (type < static_cast<std::uint32_t>(FrameType::kEager) ||
      type > static_cast<std::uint32_t>(FrameType::kBroken)) {
    return std::nullopt;
  }
  frame.type = static_cast<FrameType>(type);
  const bool valid =
      reader == Reader::kReceiver ? valid_to_receiver(frame) : valid_to_sender(frame);
  if (!valid) return std::nullopt;
  return frame;
}

}  // namespace ropewalk::transport::tcp
