// Feeds bytes to the parsers of the greeting, the handle and the frames.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "transport/messaging/tcp/frame.h"
#include "transport/messaging/tcp/handshake.h"

namespace tcp = ropewalk::transport::tcp;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void frames(std::span<const std::byte> bytes, tcp::Reader reader) {
  for (; bytes.size() >= tcp::kFrameBytes; bytes = bytes.subspan(1)) {
    const auto header = bytes.first<tcp::kFrameBytes>();
    const std::optional<tcp::Frame> frame = tcp::decode(header, reader);
    if (!frame) continue;
    if (reader == tcp::Reader::kReceiver) {
      require(frame->piece <= tcp::kPieceBytes);
      require(frame->offset + frame->piece <= frame->bytes);
      require(frame->bytes <= tcp::kMaxMessageBytes);
    } else if (frame->type != tcp::FrameType::kBroken) {
      require(frame->piece <= tcp::kEagerCredits);
    }
    const auto again = tcp::encode(*frame);
    require(std::memcmp(again.data(), header.data(), again.size()) == 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  frames(bytes, tcp::Reader::kReceiver);
  frames(bytes, tcp::Reader::kSender);

  tcp::Token token{};
  token.fill(std::byte{'t'});
  tcp::Hello hello;
  // A stranger stays one when more bytes arrive; a greeting is checked once it is complete.
  bool stranger = false;
  for (std::size_t length = 0; length <= std::min(size, tcp::kHelloBytes); ++length) {
    const tcp::HelloState state = tcp::judge_hello(bytes.first(length), token, hello);
    require(!stranger || state == tcp::HelloState::kStranger);
    stranger = state == tcp::HelloState::kStranger;
    require((state == tcp::HelloState::kIncomplete) == (!stranger && length < tcp::kHelloBytes));
    if (state == tcp::HelloState::kProven) {
      require(hello.stream < hello.streams && hello.streams <= tcp::kMaxStreams);
      require(hello.token == token);
    }
  }
  ropewalk::transport::Handle handle{};
  std::memcpy(handle.data(), data, std::min(size, handle.size()));
  if (const auto target = tcp::decode_handle(handle)) {
    require(target->address.port() != 0 && !target->address.text().empty());
  }
  return 0;
}
