// One non-blocking socket of a connection: frames out, frames and payloads in.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/file_descriptor.h"
#include "transport/messaging/tcp/frame.h"
#include "transport/transport.h"

namespace ropewalk::transport::tcp {

/// Where a frame's payload goes: its first `head_bytes` to `head`, the others to `rest`.
struct PayloadTarget {
  std::byte* head = nullptr;
  std::size_t head_bytes = 0;
  std::byte* rest = nullptr;
};

/// The callbacks of a stream while it reads.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  /// A frame came.
  /// @return where its payload of `frame.piece` bytes goes; unused when there is none
  virtual PayloadTarget begin_frame(const Frame& frame) = 0;
  /// The payload is there too (at once when there is none).
  virtual void end_frame(const Frame& frame, const PayloadTarget& payload) = 0;
  /// The connection broke by what the last frame said: read no further.
  [[nodiscard]] virtual bool broken() const = 0;
  /// Whether it has a use for frames now. What has come stays in the stream until it has.
  [[nodiscard]] virtual bool wants_frames() const = 0;
};

class Stream {
 public:
  /// Takes a connected, non-blocking socket.
  Stream(FileDescriptor socket, Reader reader);

  /// Queues bytes that come before all frames (the greeting).
  void queue_raw(std::span<const std::byte> bytes);

  /// Queues a frame and its payload: `head`, which is copied, and the others of the frame's bytes,
  /// which must stay until the socket took all of it. Then `*unsent` is lowered by kFrameBytes and
  /// the payload's size. `unsent` may be null for a frame without payload.
  void queue(const Frame& frame, std::span<const std::byte> head, const std::byte* payload,
             std::size_t* unsent);

  /// Writes what the socket takes.
  /// @return false when it will never take more
  bool flush();

  /// Reads what has come while the sink wants it, at most about 1 MiB, so that a call stays short;
  /// and not beyond the first long eager message, so that the sink knows where the next one is
  /// wanted.
  /// @return false when nothing more will ever come
  bool read(FrameSink& sink);

  /// The same of short messages that an earlier call took from the socket and left, without a
  /// system call.
  bool read_left_over(FrameSink& sink) { return bulk_ || !frame_left() || consume(sink); }

  /// Reads exactly the bytes of the listener's answer, before the first frame.
  enum class Answer { kNotYet, kRight, kWrong, kEnded };
  Answer read_reply(const Reply& reply);

  [[nodiscard]] bool idle() const noexcept { return out_first_ == out_.size(); }
  [[nodiscard]] int fd() const noexcept { return socket_.get(); }
  /// Why flush() or read() returned false, in words.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
  /// Ends both directions at once; queued payloads are no longer accessed.
  void shut_down() noexcept;
  /// Gives the socket away, for closing.
  FileDescriptor release() noexcept { return std::move(socket_); }

 private:
  struct Outgoing {
    std::array<std::byte, kFrameBytes + kMaxHeadBytes> header;  // and the payload's head
    std::size_t header_bytes;
    const std::byte* payload;
    std::size_t payload_bytes;  // behind the header
    std::size_t sent;
    std::size_t* unsent;
  };
  [[nodiscard]] bool frame_left() const noexcept { return end_ - begin_ >= kFrameBytes; }
  Outgoing& add_outgoing();
  void drop_outgoing() noexcept;
  // Consumes whole frames and payload bytes from the buffer.
  // @return false on an invalid frame
  bool consume(FrameSink& sink);
  std::optional<std::size_t> receive(std::span<iovec> into);
  // The parts of the current frame's payload that have not arrived.
  [[nodiscard]] std::array<std::span<std::byte>, 2> missing() const;

  FileDescriptor socket_;
  Reader reader_;
  std::vector<Outgoing> out_;  // those before out_first_ are through
  std::size_t out_first_ = 0;
  std::string reason_;

  // Reading: bytes [begin_, end_) of buffer_ have come and wait; when frame_ is set, `done_` of its
  // payload is at its target.
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::optional<Frame> frame_;
  PayloadTarget target_;
  std::size_t done_ = 0;
  // After a long piece another is likely: then only a header is read ahead, so that the payload
  // goes straight to its target instead of through the buffer.
  bool bulk_ = false;
  bool enough_ = false;  // read() ends here
};

}  // namespace ropewalk::transport::tcp
