#include "transport/messaging/tcp/stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/copy_in_order.h"
#include "core/error.h"

namespace ropewalk::transport::tcp {
namespace {

constexpr std::size_t kMaxRanges = 32;
// Queued frames that the socket took, before their memory is used again.
constexpr std::size_t kMostThrough = 64;
constexpr std::size_t kReadLimitBytes = std::size_t{1} << 20;
// A burst of small messages is one system call.
constexpr std::size_t kReceiverBufferBytes = std::size_t{64} << 10;
constexpr std::size_t kSenderBufferBytes = 32 * kFrameBytes;
// Ranges of so few bytes in all are copied side by side: a list of them costs the system 0.1 us, a
// copy a tenth of that.
constexpr std::size_t kSideBySide = std::size_t{2} << 10;
// From here on a system call to learn of a message costs less than to copy it once more.
constexpr std::size_t kBulkBytes = std::size_t{16} << 10;

bool try_later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

msghdr message_of(std::span<iovec> ranges) {
  msghdr message{};
  message.msg_iov = ranges.data();
  message.msg_iovlen = ranges.size();
  return message;
}

// One range needs no list of them, which the system would have to fetch and check.
ssize_t send_ranges(int socket, std::span<iovec> ranges, std::size_t bytes) {
  constexpr int kFlags = MSG_NOSIGNAL | MSG_DONTWAIT;
  if (ranges.size() == 1) return ::send(socket, ranges.front().iov_base, bytes, kFlags);
  if (bytes <= kSideBySide) {
    std::array<std::byte, kSideBySide> all;
    std::byte* end = all.data();
    for (const iovec& range : ranges) {
      end = std::copy_n(static_cast<const std::byte*>(range.iov_base), range.iov_len, end);
    }
    return ::send(socket, all.data(), bytes, kFlags);
  }
  const msghdr message = message_of(ranges);
  return sendmsg(socket, &message, kFlags);
}

ssize_t receive_ranges(int socket, std::span<iovec> ranges) {
  if (ranges.size() == 1) {
    return ::recv(socket, ranges.front().iov_base, ranges.front().iov_len, MSG_DONTWAIT);
  }
  msghdr message = message_of(ranges);
  return recvmsg(socket, &message, MSG_DONTWAIT);
}

}  // namespace

Stream::Stream(FileDescriptor socket, Reader reader)
    : socket_(std::move(socket)),
      reader_(reader),
      buffer_(reader == Reader::kReceiver ? kReceiverBufferBytes : kSenderBufferBytes) {}

// In a vector, and not in a deque, which takes memory for every other one.
Stream::Outgoing& Stream::add_outgoing() {
  if (out_first_ > kMostThrough) {
    out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(out_first_));
    out_first_ = 0;
  }
  return out_.emplace_back();
}

void Stream::drop_outgoing() noexcept {
  if (++out_first_ < out_.size()) return;
  out_.clear();
  out_first_ = 0;
}

void Stream::queue_raw(std::span<const std::byte> bytes) {
  Outgoing& entry = add_outgoing();
  RW_ASSERT(bytes.size() <= entry.header.size());
  std::copy(bytes.begin(), bytes.end(), entry.header.begin());
  entry.header_bytes = bytes.size();
}

void Stream::queue(const Frame& frame, std::span<const std::byte> head, const std::byte* payload,
                   std::size_t* unsent) {
  Outgoing& entry = add_outgoing();
  const std::array<std::byte, kFrameBytes> encoded = encode(frame);
  RW_ASSERT(kFrameBytes + head.size() <= entry.header.size());
  std::copy(head.begin(), head.end(),
            std::copy(encoded.begin(), encoded.end(), entry.header.begin()));
  entry.header_bytes = kFrameBytes + head.size();
  entry.payload = payload;
  if (payload != nullptr) entry.payload_bytes = frame.piece - head.size();
  entry.unsent = unsent;
}

bool Stream::flush() {
  while (!idle()) {
    std::array<iovec, kMaxRanges> ranges;
    std::size_t used = 0;
    std::size_t bytes = 0;
    for (Outgoing& entry : std::span(out_).subspan(out_first_)) {
      if (used + 2 > ranges.size()) break;
      std::size_t skip = entry.sent;
      bytes += entry.header_bytes + entry.payload_bytes - entry.sent;
      if (skip < entry.header_bytes) {
        ranges[used++] = {entry.header.data() + skip, entry.header_bytes - skip};
        skip = entry.header_bytes;
      }
      skip -= entry.header_bytes;
      if (skip < entry.payload_bytes) {
        ranges[used++] = {const_cast<std::byte*>(entry.payload) + skip, entry.payload_bytes - skip};
      }
    }
    const ssize_t sent = send_ranges(socket_.get(), std::span(ranges).first(used), bytes);
    if (sent < 0) {
      if (try_later(errno)) return true;
      reason_ = system_error(errno, "send").what();
      return false;
    }
    auto left = static_cast<std::size_t>(sent);
    while (!idle()) {
      Outgoing& entry = out_[out_first_];
      const std::size_t rest = entry.header_bytes + entry.payload_bytes - entry.sent;
      if (left < rest) {
        entry.sent += left;
        break;
      }
      left -= rest;
      if (entry.unsent != nullptr) *entry.unsent -= entry.header_bytes + entry.payload_bytes;
      drop_outgoing();
    }
  }
  return true;
}

std::optional<std::size_t> Stream::receive(std::span<iovec> into) {
  const ssize_t got = receive_ranges(socket_.get(), into);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got < 0 && try_later(errno)) return 0;
  reason_ = got == 0 ? "it closed the connection" : system_error(errno, "receive").what();
  return std::nullopt;
}

bool Stream::consume(FrameSink& sink) {
  while (!sink.broken()) {
    if (!frame_) {
      if (!frame_left()) return true;
      if (!sink.wants_frames()) {
        enough_ = true;
        return true;
      }
      frame_ =
          decode(std::span<const std::byte, kFrameBytes>(&buffer_[begin_], kFrameBytes), reader_);
      begin_ += kFrameBytes;
      if (!frame_) {
        reason_ = "it sent an invalid frame header";
        return false;
      }
      done_ = 0;
      target_ = sink.begin_frame(*frame_);
      if (sink.broken()) return true;
    }
    if (reader_ == Reader::kReceiver) {
      bulk_ = frame_->piece >= kBulkBytes;
      for (const std::span<std::byte> part : missing()) {
        const std::size_t ready = std::min(part.size(), end_ - begin_);
        if (ready > 0) copy_in_order(part.data(), &buffer_[begin_], ready);
        begin_ += ready;
        done_ += ready;
      }
      if (done_ < frame_->piece) return true;
    }
    const Frame finished = *std::exchange(frame_, std::nullopt);
    sink.end_frame(finished, target_);
    if (bulk_ && finished.type == FrameType::kEager) {
      enough_ = true;
      return true;
    }
  }
  return true;
}

std::array<std::span<std::byte>, 2> Stream::missing() const {
  const std::size_t rest_bytes = frame_->piece - target_.head_bytes;
  if (done_ >= target_.head_bytes) {
    const std::size_t done = done_ - target_.head_bytes;
    return {std::span<std::byte>{}, {target_.rest + done, rest_bytes - done}};
  }
  return {std::span{target_.head + done_, target_.head_bytes - done_},
          std::span{target_.rest, rest_bytes}};
}

bool Stream::read(FrameSink& sink) {
  std::size_t taken = 0;
  enough_ = false;
  if (frame_left() && !consume(sink)) return false;
  while (taken < kReadLimitBytes && !enough_ && !sink.broken()) {
    std::optional<std::size_t> got;
    std::size_t asked = 0;
    if (frame_) {  // the buffer is empty: consume() used it up for the payload
      begin_ = end_ = 0;
      const auto [head, rest] = missing();
      const std::size_t ahead = bulk_ ? kFrameBytes : buffer_.size();
      std::array<iovec, 3> ranges = {iovec{head.data(), head.size()},
                                     iovec{rest.data(), rest.size()},
                                     {buffer_.data(), ahead}};
      got = receive(ranges);
      if (!got) return false;
      asked = head.size() + rest.size() + ahead;
      const std::size_t direct = std::min(*got, head.size() + rest.size());
      done_ += direct;
      end_ = *got - direct;
    } else {
      if (begin_ > 0) {
        std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
        end_ -= begin_;
        begin_ = 0;
      }
      asked = (bulk_ ? kFrameBytes : buffer_.size()) - end_;
      std::array<iovec, 1> range = {iovec{buffer_.data() + end_, asked}};
      got = receive(range);
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

Stream::Answer Stream::read_reply(const Reply& reply) {
  std::array<iovec, 1> range = {iovec{buffer_.data() + end_, kReplyBytes - end_}};
  const std::optional<std::size_t> got = receive(range);
  if (!got) return Answer::kEnded;
  end_ += *got;
  if (end_ < kReplyBytes) return Answer::kNotYet;
  begin_ = end_ = 0;
  return is_reply(std::span<const std::byte, kReplyBytes>(buffer_.data(), kReplyBytes), reply)
             ? Answer::kRight
             : Answer::kWrong;
}

void Stream::shut_down() noexcept {
  out_.clear();
  out_first_ = 0;
  frame_.reset();
  if (socket_) shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace ropewalk::transport::tcp
