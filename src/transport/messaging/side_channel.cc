#include "transport/messaging/side_channel.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/random.h"
#include "core/socket.h"

namespace ropewalk::transport::messaging {
namespace {

struct NoteHead {
  std::uint32_t note;
  std::uint32_t bytes;
};
constexpr std::size_t kMaxPayload = 2048;

}  // namespace

SideChannel SideChannel::connecting(FileDescriptor socket, const tcp::Token& proof,
                                    const tcp::Reply& reply) {
  SideChannel channel(std::move(socket));
  tcp::Hello hello;
  hello.token = proof;
  hello.streams = 1;
  fill_random(hello.connection);
  const auto bytes = tcp::encode(hello);
  channel.out_.assign(bytes.begin(), bytes.end());
  channel.reply_ = reply;
  channel.flush();
  return channel;
}

SideChannel SideChannel::accepting(FileDescriptor socket, const tcp::Reply& reply) {
  SideChannel channel(std::move(socket));
  const auto bytes = tcp::encode(reply);
  channel.out_.assign(bytes.begin(), bytes.end());
  channel.flush();
  return channel;
}

void SideChannel::send(Note note, std::span<const std::byte> payload) {
  payload = payload.first(std::min(payload.size(), kMaxPayload));
  const NoteHead head{static_cast<std::uint32_t>(note), static_cast<std::uint32_t>(payload.size())};
  const auto* const bytes = reinterpret_cast<const std::byte*>(&head);
  // This end sends nothing of its own before the peer has proven that it knows the secret.
  std::vector<std::byte>& queue = reply_ ? held_back_ : out_;
  queue.insert(queue.end(), bytes, bytes + sizeof head);
  queue.insert(queue.end(), payload.begin(), payload.end());
  flush();
}

void SideChannel::flush() {
  while (!out_.empty() && !socket_ended_) {
    const ssize_t sent =
        ::send(socket_.get(), out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (sent < 0) return;  // read() says why
    out_.erase(out_.begin(), out_.begin() + sent);
  }
}

void SideChannel::end(std::string reason) {
  socket_ended_ = true;
  reason_ = std::move(reason);
}

void SideChannel::read() {
  std::array<std::byte, 4096> piece;
  while (!socket_ended_) {
    const ssize_t got = recv(socket_.get(), piece.data(), piece.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got < 0) return end(system_words(errno));
    if (got == 0) return end("the peer's process has ended");
    in_.insert(in_.end(), piece.begin(), piece.begin() + got);
  }
}

std::optional<SideChannel::Received> SideChannel::poll() {
  flush();
  read();
  if (reply_) {
    if (in_.size() < tcp::kReplyBytes) {
      ended_ = socket_ended_;
      return std::nullopt;
    }
    if (!tcp::is_reply(std::span(in_).first<tcp::kReplyBytes>(), *reply_)) {
      in_.clear();
      end("the process that answered does not know the handle's secret");
      ended_ = true;
      return std::nullopt;
    }
    in_.erase(in_.begin(), in_.begin() + tcp::kReplyBytes);
    reply_.reset();
    out_.insert(out_.end(), held_back_.begin(), held_back_.end());
    held_back_.clear();
    flush();
  }
  NoteHead head{};
  if (in_.size() >= sizeof head) {
    std::memcpy(&head, in_.data(), sizeof head);
    if (head.bytes > kMaxPayload || head.note < static_cast<std::uint32_t>(Note::kHello) ||
        head.note > static_cast<std::uint32_t>(Note::kEnd)) {
      in_.clear();
      end("a malformed message arrived over the side channel");
    } else if (in_.size() >= sizeof head + head.bytes) {
      Received received{static_cast<Note>(head.note), {}};
      const auto begin = in_.begin() + sizeof head;
      received.payload.assign(begin, begin + head.bytes);
      in_.erase(in_.begin(), begin + head.bytes);
      return received;
    }
  }
  ended_ = socket_ended_;
  return std::nullopt;
}

}  // namespace ropewalk::transport::messaging
