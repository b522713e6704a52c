#include "transport/messaging/tcp/stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace ropewalk::transport::tcp {
namespace {

constexpr std::size_t kMaxRanges = 32;
constexpr std::size_t kReadLimitBytes = std::size_t{1} << 20;
// Room for several eager messages, so that a burst of small ones is one system call.
constexpr std::size_t kReceiverBufferBytes = 2 * (kFrameBytes + kEagerBytes);
constexpr std::size_t kSenderBufferBytes = 32 * kFrameBytes;

bool try_later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

Stream::Stream(FileDescriptor socket, Reader reader)
    : socket_(std::move(socket)),
      reader_(reader),
      buffer_(reader == Reader::kReceiver ? kReceiverBufferBytes : kSenderBufferBytes) {}

void Stream::queue_raw(std::span<const std::byte> bytes) {
  Outgoing entry{};
  RW_ASSERT(bytes.size() <= entry.header.size());
  std::copy(bytes.begin(), bytes.end(), entry.header.begin());
  entry.header_bytes = bytes.size();
  out_.push_back(entry);
}

void Stream::queue(const Frame& frame, const std::byte* payload, std::size_t* unsent) {
  Outgoing entry{encode(frame), kFrameBytes, payload, 0, 0, unsent};
  if (payload != nullptr) entry.payload_bytes = frame.piece;
  out_.push_back(entry);
}

bool Stream::flush() {
  while (!out_.empty()) {
    std::array<iovec, kMaxRanges> ranges{};
    std::size_t used = 0;
    for (Outgoing& entry : out_) {
      if (used + 2 > ranges.size()) break;
      std::size_t skip = entry.sent;
      if (skip < entry.header_bytes) {
        ranges[used++] = {entry.header.data() + skip, entry.header_bytes - skip};
        skip = entry.header_bytes;
      }
      skip -= entry.header_bytes;
      if (skip < entry.payload_bytes) {
        ranges[used++] = {const_cast<std::byte*>(entry.payload) + skip, entry.payload_bytes - skip};
      }
    }
    msghdr message{};
    message.msg_iov = ranges.data();
    message.msg_iovlen = used;
    const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (try_later(errno)) return true;
      reason_ = system_error(errno, "send").what();
      return false;
    }
    auto left = static_cast<std::size_t>(sent);
    while (!out_.empty()) {
      Outgoing& entry = out_.front();
      const std::size_t rest = entry.header_bytes + entry.payload_bytes - entry.sent;
      if (left < rest) {
        entry.sent += left;
        break;
      }
      left -= rest;
      if (entry.unsent != nullptr) *entry.unsent -= kFrameBytes + entry.payload_bytes;
      out_.pop_front();
    }
  }
  return true;
}

std::optional<std::size_t> Stream::receive(std::span<std::byte> into, std::span<std::byte> then) {
  std::array<iovec, 2> ranges = {iovec{into.data(), into.size()}, iovec{then.data(), then.size()}};
  msghdr message{};
  message.msg_iov = ranges.data();
  message.msg_iovlen = then.empty() ? 1 : 2;
  const ssize_t got = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got < 0 && try_later(errno)) return 0;
  reason_ = got == 0 ? "it closed the connection" : system_error(errno, "receive").what();
  return std::nullopt;
}

bool Stream::consume(FrameSink& sink) {
  while (!sink.broken()) {
    if (!frame_) {
      if (end_ - begin_ < kFrameBytes) return true;
      frame_ =
          decode(std::span<const std::byte, kFrameBytes>(&buffer_[begin_], kFrameBytes), reader_);
      begin_ += kFrameBytes;
      if (!frame_) {
        reason_ = "it sent a frame that makes no sense";
        return false;
      }
      done_ = 0;
      destination_ = sink.begin_frame(*frame_);
      if (sink.broken()) return true;
    }
    if (reader_ == Reader::kReceiver) {
      bulk_ = frame_->piece > kEagerBytes;
      const std::size_t ready = std::min<std::size_t>(frame_->piece - done_, end_ - begin_);
      if (ready > 0) std::memcpy(destination_ + done_, &buffer_[begin_], ready);
      begin_ += ready;
      done_ += ready;
      if (done_ < frame_->piece) return true;
    }
    const Frame finished = *std::exchange(frame_, std::nullopt);
    sink.end_frame(finished, destination_);
  }
  return true;
}

bool Stream::read(FrameSink& sink) {
  std::size_t taken = 0;
  while (taken < kReadLimitBytes && !sink.broken()) {
    std::optional<std::size_t> got;
    std::size_t asked = 0;
    if (frame_) {  // the buffer is empty: consume() used it up for the payload
      begin_ = end_ = 0;
      const std::size_t rest = frame_->piece - done_;
      const std::size_t ahead = bulk_ ? kFrameBytes : buffer_.size();
      got = receive({destination_ + done_, rest}, {buffer_.data(), ahead});
      if (!got) return false;
      asked = rest + ahead;
      const std::size_t direct = std::min(*got, rest);
      done_ += direct;
      end_ = *got - direct;
    } else {
      if (begin_ > 0) {
        std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
        end_ -= begin_;
        begin_ = 0;
      }
      asked = (bulk_ ? kFrameBytes : buffer_.size()) - end_;
      got = receive({buffer_.data() + end_, asked}, {});
      if (!got) return false;
      end_ += *got;
    }
    if (*got == 0) return true;
    taken += *got;
    if (!consume(sink)) return false;
    // Less than was asked for: the socket is empty, and asking again would only say so.
    if (*got < asked) return true;
  }
  return true;
}

Stream::Answer Stream::read_reply(const Token& token) {
  const std::optional<std::size_t> got = receive({buffer_.data() + end_, kReplyBytes - end_}, {});
  if (!got) return Answer::kEnded;
  end_ += *got;
  if (end_ < kReplyBytes) return Answer::kNotYet;
  begin_ = end_ = 0;
  return is_reply(std::span<const std::byte, kReplyBytes>(buffer_.data(), kReplyBytes), token)
             ? Answer::kRight
             : Answer::kWrong;
}

void Stream::shut_down() noexcept {
  out_.clear();
  frame_.reset();
  if (socket_) shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace ropewalk::transport::tcp
