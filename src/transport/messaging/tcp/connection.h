// The two ends of a TCP connection: matching, eager and large messages, completion.
//
// Small messages (up to kEagerBytes) are sent at once and cost one system call, as many as
// kEagerCredits permit before their receives are posted. Until a receive is posted they stay in the
// stream and the socket; the receiver holds those that arrive before a message it waits for. A
// larger message waits in the sender until the receiver has room for it, so nothing is ever
// buffered without bound and no message blocks another of a different tag:
//
//   receiver  posts a receive that nothing has come for        ->  kAnnounce(receive, tag)
//   sender    has an announcement for the tag                  ->  kData pieces for that receive
//   sender    has none                                         ->  kRequest(message, tag, bytes)
//   receiver  has a receive for the request                    ->  kGrant(message, receive)
//
// In a steady state receives are posted before the messages come, so the announcement has crossed
// already and costs nothing. Announcements of small receives, and of large ones into which small
// messages come, are only of use for the order below and leave in batches.
//
// Order. Eager messages and requests are matched by the receiver, in the order of stream 0, with
// the first receive of their tag. The sender may use an announcement only for the message that the
// receiver would match with that receive. It knows which that is: every receive is announced that
// did not find its message waiting, with the number of the last message that had been seen by then
// (`number`). So an announced receive belongs to the first message of its tag with a later number
// that no earlier announcement took; the sender keeps its later messages (unseen_) to tell. The
// first piece of a large message goes on stream 0, before the sender's later messages, so that the
// receiver knows the receive is taken when they come.
//
// Longer eager messages are held back until the sender's next test(), so that several that are sent
// together are one system call.
//
// Pieces of kPieceBytes are handed to whichever stream is idle. Payloads go from the user's memory
// to the socket and from the socket to the user's memory; only up to kEagerBytes at the start of a
// piece, and eager messages, pass through a buffer.
//
// A request that is destroyed unfinished breaks the connection.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "transport/messaging/tcp/stream.h"
#include "transport/receive_request.h"
#include "transport/transport.h"

namespace ropewalk::transport::tcp {

inline constexpr std::size_t kMaxRequests = 32;
inline constexpr std::size_t kMaxGroup = 8;

/// Closed sockets whose last bytes have not yet reached the peer's system. Closing such a socket
/// can lose them when the peer still writes, so they are kept until they are through.
/// Threads: any.
class Linger {
 public:
  Linger();
  ~Linger();  ///< settles
  Linger(const Linger&) = delete;
  Linger& operator=(const Linger&) = delete;
  void adopt(FileDescriptor socket);
  /// Closes those that are through.
  void poll();
  /// Polls until none is left, for a bounded time. Sockets that are not done by then are kept.
  void settle();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What both ends share: streams, and the state of being broken.
class Connection {
 public:
  Connection(std::vector<Stream> streams, std::string peer, bool checksums, Linger& linger);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void fail(Errc code, std::string reason);
  [[nodiscard]] bool failed() const noexcept { return error_.has_value(); }
  void throw_if_failed() const;

  std::vector<Stream> streams;
  const std::string peer;
  const bool checksums;

 private:
  Linger& linger_;
  std::optional<Error> error_;
};

class TcpSendRequest;

class TcpSender final : public SendConnection, private FrameSink {
 public:
  /// The streams have their greeting queued; nothing else is sent before all answers are right.
  TcpSender(std::vector<Stream> streams, std::string peer, const Reply& reply, bool checksums,
            Linger& linger);
  ~TcpSender() override;
  TcpSender(const TcpSender&) = delete;
  TcpSender& operator=(const TcpSender&) = delete;
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override;
  std::unique_ptr<Request> send(const void* data, std::size_t bytes, std::uint32_t tag,
                                Registration* registration) override;
  void more_follow(bool follow) override { more_follow_ = follow; }
  /// A checksum covers one contiguous buffer.
  [[nodiscard]] bool splits_messages() const override { return !connection_.checksums; }
  std::unique_ptr<Request> send_split(std::span<const std::byte> head, const void* data,
                                      std::size_t bytes, std::uint32_t tag) override;
  [[nodiscard]] bool add_descriptors(std::vector<pollfd>& to) const override;

 private:
  friend class TcpSendRequest;
  struct Message {
    std::array<std::byte, kMaxHeadBytes> head{};
    std::size_t head_bytes = 0;
    const std::byte* data = nullptr;  // behind the head
    std::size_t bytes = 0;
    std::uint64_t receive = 0;    // its receive, for a large one
    std::uint64_t number = 0;     // of an eager message or request
    std::size_t next_offset = 0;  // of the first byte that no stream has yet
    std::size_t unsent = 0;       // bytes that streams have and sockets not yet took
    bool handed_out = false;      // all of it was given to streams
    [[nodiscard]] bool finished() const { return handed_out && unsent == 0; }
  };
  struct Announced {
    std::uint32_t tag;
    std::uint64_t receive;
    std::uint64_t capacity;
  };
  struct Unseen {
    std::uint32_t tag;
    std::uint64_t number;
  };
  PayloadTarget begin_frame(const Frame& frame) override;
  void end_frame(const Frame& frame, const PayloadTarget& payload) override;
  [[nodiscard]] bool broken() const override { return connection_.failed(); }
  [[nodiscard]] bool wants_frames() const override { return true; }

  std::unique_ptr<Request> start(std::span<const std::byte> head, const void* data,
                                 std::size_t rest_bytes, std::uint32_t tag);
  void progress();
  void write_held_back();
  bool answered();
  void hand_out_pieces();
  void queue_piece(Message& message, Stream& stream);
  std::optional<Announced> take_announcement(std::uint32_t tag);
  void seen(std::uint64_t number);
  void abandon(Message* message);

  Connection connection_;
  Reply reply_;
  std::vector<bool> answered_;
  std::size_t unanswered_;
  std::uint64_t number_ = 0;
  std::uint64_t credits_ = kEagerCredits;
  std::size_t active_ = 0;
  bool held_back_ = false;  // messages that no system call was made for yet
  bool more_follow_ = false;
  std::deque<Announced> announced_;
  std::deque<Unseen> unseen_;
  std::vector<Message*> waiting_;  // for a grant
  std::deque<Message*> large_;     // with pieces left to hand out
};

class TcpReceiver final : public ReceiveConnection, private FrameSink {
 public:
  TcpReceiver(std::vector<Stream> streams, std::string peer, bool checksums, Linger& linger);
  ~TcpReceiver() override;
  TcpReceiver(const TcpReceiver&) = delete;
  TcpReceiver& operator=(const TcpReceiver&) = delete;
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override;
  std::unique_ptr<Request> receive(std::span<const ReceiveBuffer> buffers) override;
  std::unique_ptr<Request> flush(std::span<const ReceiveBuffer> buffers) override;
  [[nodiscard]] bool add_descriptors(std::vector<pollfd>& to) const override;

 private:
  friend class ReceiveRequest<TcpReceiver>;
  struct Posted {
    ReceiveBuffer buffer;
    std::uint64_t id = 0;
    std::size_t bytes = 0;    // of the message, once known
    std::size_t arrived = 0;  // of them
    bool matched = false;
    bool finished = false;
    struct {
      std::size_t offset = 0;
      std::byte* data = nullptr;
      std::size_t bytes = 0;
    } rest;  // where the message's end is wanted, if it has that size
    bool placed = false;
  };
  // An eager message or a request that came before its receive.
  struct Arrival {
    Frame frame;
    std::unique_ptr<std::byte[]> payload;
    bool complete = false;
    Posted* receive = nullptr;  // matched before it was complete
  };
  PayloadTarget begin_frame(const Frame& frame) override;
  void end_frame(const Frame& frame, const PayloadTarget& payload) override;
  [[nodiscard]] bool broken() const override { return connection_.failed(); }
  // Messages that come early stay where they are, if not one is waited for that may be behind them,
  // and while the connection lasts.
  [[nodiscard]] bool wants_frames() const override { return !posted_.empty() || end_deadline_; }

  /// Whether messages for all of these have come whole.
  [[nodiscard]] bool held(std::span<const ReceiveBuffer> buffers) const;
  void progress();
  void throw_if_failed() const { connection_.throw_if_failed(); }
  void read_stream(std::size_t index);
  void post(Posted& posted);
  void withdraw(Posted& posted);
  bool take_message(Posted& posted, std::size_t bytes);
  void finish(Posted& posted);
  /// Reads the message of a receive from what stream 0 has left over.
  /// @return whether it was there
  bool find_in_left_over(const Posted& posted);
  Posted* first_unmatched(std::uint32_t tag);
  /// Where the payload of a message's frame goes; notes whether its rest is placed apart.
  static PayloadTarget target_of(Posted& posted, const Frame& frame);
  Posted* by_id(std::uint64_t id);
  void match_request(const Frame& request, Posted& posted);
  void return_credits(std::uint64_t message_bytes);
  void queue_control(Frame frame);
  void flush_control();
  void fail_unexpected(const Frame& frame);

  Connection connection_;
  std::uint64_t next_id_ = 1;
  std::uint64_t seen_ = 0;
  unsigned small_in_row_ = 0;  // eager messages into receives for large ones, the last ones
  std::uint64_t owed_credits_ = 0;
  std::size_t queued_controls_ = 0;
  std::size_t active_ = 0;
  std::vector<Posted*> posted_;  // not finished, in order
  std::list<Arrival> arrivals_;
  Arrival* reading_ = nullptr;      // the eager message that stream 0 is in, if held
  Posted* eager_target_ = nullptr;  // the receive of the eager message that stream 0 is in
  std::size_t in_pieces_ = 0;       // matched messages of several pieces
  std::size_t current_stream_ = 0;
  std::vector<bool> ended_;
  std::optional<std::chrono::steady_clock::time_point> end_deadline_;
};

}  // namespace ropewalk::transport::tcp
