// One non-blocking socket of a connection: frames out, frames and payloads in.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/file_descriptor.h"
#include "transport/messaging/tcp/frame.h"

namespace ropewalk::transport::tcp {

/// What a stream asks of its connection while it reads.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  /// A frame came. @return where its payload of `frame.piece` bytes goes; unused when there is none
  virtual std::byte* begin_frame(const Frame& frame) = 0;
  /// The payload is there too (at once when there is none).
  virtual void end_frame(const Frame& frame, const std::byte* payload) = 0;
  /// The connection broke by what the last frame said: read no further.
  [[nodiscard]] virtual bool broken() const = 0;
};

class Stream {
 public:
  /// Takes a connected, non-blocking socket.
  Stream(FileDescriptor socket, Reader reader);

  /// Queues bytes that come before all frames (the greeting).
  void queue_raw(std::span<const std::byte> bytes);

  /// Queues a frame and its payload, which must stay until the socket took all of it: then
  /// `*unsent` is lowered by kFrameBytes and the payload's size.
  /// `unsent` may be null for a frame without payload.
  void queue(const Frame& frame, const std::byte* payload, std::size_t* unsent);

  /// Writes what the socket takes. @return false when it will never take more
  bool flush();

  /// Reads what has come, at most about 1 MiB, so that a call stays short.
  /// @return false when nothing more will ever come
  bool read(FrameSink& sink);

  /// Reads exactly the bytes of the listener's answer, before the first frame.
  enum class Answer { kNotYet, kRight, kWrong, kEnded };
  Answer read_reply(const Token& token);

  [[nodiscard]] bool idle() const noexcept { return out_.empty(); }
  [[nodiscard]] int fd() const noexcept { return socket_.get(); }
  /// Why flush() or read() returned false, in words.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
  /// Ends both directions at once; queued payloads are no longer looked at.
  void shut_down() noexcept;
  /// Gives the socket away, for closing.
  FileDescriptor release() noexcept { return std::move(socket_); }

 private:
  struct Outgoing {
    std::array<std::byte, kFrameBytes> header;
    std::size_t header_bytes;
    const std::byte* payload;
    std::size_t payload_bytes;
    std::size_t sent;
    std::size_t* unsent;
  };
  // Consumes whole frames and payload bytes from the buffer. @return false on a senseless frame
  bool consume(FrameSink& sink);
  std::optional<std::size_t> receive(std::span<std::byte> into, std::span<std::byte> then);

  FileDescriptor socket_;
  Reader reader_;
  std::deque<Outgoing> out_;
  std::string reason_;

  // Reading: bytes [begin_, end_) of buffer_ have come and wait; when frame_ is set, `done_` of its
  // payload is in place.
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::optional<Frame> frame_;
  std::byte* destination_ = nullptr;
  std::size_t done_ = 0;
  // After a large piece another is likely: then only a header is read ahead, so that the payload
  // goes straight to its place instead of through the buffer.
  bool bulk_ = false;
};

}  // namespace ropewalk::transport::tcp
