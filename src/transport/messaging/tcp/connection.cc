#include "transport/messaging/tcp/connection.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "transport/checksum.h"
#include "transport/receive_copy.h"
#include "transport/receive_request.h"
#include "transport/simple_requests.h"

namespace ropewalk::transport::tcp {
namespace {

// Half of the credits would do; a quarter leaves the sender room while the credits travel.
constexpr std::uint64_t kCreditBatch = kEagerCredits / 4;
constexpr std::size_t kControlBatch = 64;
// After this many eager messages into receives for large ones these are announced in batches, too,
// or when a large message asks: at once it is a system call for each.
constexpr unsigned kSmallInRow = 4;
// A sender whose credits become few asks the socket for more once every kLookPeriod messages: each
// time is a system call.
constexpr std::uint64_t kLookPeriod = 16;
// Eager messages up to this size are written at once, unless the caller has more to send; longer
// ones, and those, at the next test() of the sender.
// That may take a further system call: little time compared with longer messages, much compared
// with shorter ones.
constexpr std::size_t kAtOnceBytes = 4096;
// A sender's streams end together; when one has ended, the others get this long.
constexpr auto kEndTogether = std::chrono::seconds(1);

// 0 on the wire means that the sender made no checksum.
std::uint64_t wire_checksum(const std::byte* data, std::size_t bytes) {
  const std::uint64_t sum = checksum(data, bytes);
  return sum == 0 ? 1 : sum;
}

}  // namespace

Connection::Connection(std::vector<Stream> all_streams, std::string peer_name, bool with_checksums,
                       Linger& linger)
    : streams(std::move(all_streams)),
      peer(std::move(peer_name)),
      checksums(with_checksums),
      linger_(linger) {}

Connection::~Connection() {
  for (Stream& stream : streams) {
    if (!failed()) stream.flush();
    FileDescriptor socket = stream.release();
    if (!failed()) linger_.adopt(std::move(socket));
  }
}

void Connection::fail(Errc code, std::string reason) {
  if (error_) return;
  error_ = Error(code, "TCP connection with {}: {}", peer, reason);
  for (Stream& stream : streams) stream.shut_down();
}

void Connection::throw_if_failed() const {
  if (error_) throw Error(*error_);
}

// ---- sending -------------------------------------------------------------------------------

class TcpSendRequest final : public Request {
 public:
  TcpSendRequest(TcpSender& sender, std::size_t bytes) : sender_(sender), sizes_{bytes} {
    message.bytes = bytes;
    ++sender_.active_;
  }
  ~TcpSendRequest() override {
    --sender_.active_;
    if (!message.finished()) sender_.abandon(&message);
  }
  TcpSendRequest(const TcpSendRequest&) = delete;
  TcpSendRequest& operator=(const TcpSendRequest&) = delete;
  std::optional<std::size_t> test() override {
    if (!message.finished()) sender_.write_held_back();
    if (!message.finished()) {
      sender_.progress();
      if (!message.finished()) {
        sender_.connection_.throw_if_failed();
        return std::nullopt;
      }
    }
    return message.bytes;
  }
  [[nodiscard]] std::span<const std::size_t> sizes() const override { return sizes_; }

 private:
  TcpSender& sender_;

 public:
  TcpSender::Message message;

 private:
  std::array<std::size_t, 1> sizes_;
};

TcpSender::TcpSender(std::vector<Stream> streams, std::string peer, const Reply& reply,
                     bool checksums, Linger& linger)
    : connection_(std::move(streams), std::move(peer), checksums, linger),
      reply_(reply),
      answered_(connection_.streams.size(), false),
      unanswered_(connection_.streams.size()) {
  for (Stream& stream : connection_.streams) {
    if (!stream.flush()) connection_.fail(Errc::kPeerLost, stream.reason());
  }
}

TcpSender::~TcpSender() = default;

std::unique_ptr<Registration> TcpSender::register_memory(void* data, std::size_t bytes,
                                                         MemoryKind kind) {
  return HostRegistration::make(data, bytes, kind);
}

bool TcpSender::answered() {
  for (std::size_t i = 0; i < answered_.size() && unanswered_ > 0; ++i) {
    if (answered_[i]) continue;
    Stream& stream = connection_.streams[i];
    if (!stream.flush()) connection_.fail(Errc::kPeerLost, stream.reason());
    switch (stream.read_reply(reply_)) {
      case Stream::Answer::kNotYet: break;
      case Stream::Answer::kRight:
        answered_[i] = true;
        --unanswered_;
        break;
      case Stream::Answer::kWrong:
        connection_.fail(Errc::kPeerLost, "the listener does not know the secret of the handle");
        break;
      case Stream::Answer::kEnded: connection_.fail(Errc::kPeerLost, stream.reason()); break;
    }
    if (connection_.failed()) return false;
  }
  return unanswered_ == 0;
}

std::unique_ptr<Request> TcpSender::send(const void* data, std::size_t bytes, std::uint32_t tag,
                                         Registration* /*registration*/) {
  check_buffer(data, bytes, kMaxMessageBytes);
  // Short payload is copied behind its frame, so that one range is passed to the system.
  if (bytes <= kMaxHeadBytes && !connection_.checksums) {
    return start({static_cast<const std::byte*>(data), bytes}, nullptr, 0, tag);
  }
  return start({}, data, bytes, tag);
}

std::unique_ptr<Request> TcpSender::send_split(std::span<const std::byte> head, const void* data,
                                               std::size_t bytes, std::uint32_t tag) {
  if (connection_.checksums) return SendConnection::send_split(head, data, bytes, tag);
  check_buffer(data, bytes, kMaxMessageBytes - kMaxHeadBytes);
  return start(head, data, bytes, tag);
}

std::unique_ptr<Request> TcpSender::start(std::span<const std::byte> head, const void* data,
                                          std::size_t rest_bytes, std::uint32_t tag) {
  const std::size_t bytes = head.size() + rest_bytes;
  RW_ASSERT(head.size() <= kMaxHeadBytes);
  connection_.throw_if_failed();
  // Eager messages alone need no read of the socket while there are credits enough.
  const bool eager_size = bytes <= kEagerBytes;
  const bool short_of_credits =
      credits_ < credits_of(bytes) || (credits_ <= kEagerCredits / 2 && number_ % kLookPeriod == 0);
  if (unanswered_ > 0 || !eager_size || short_of_credits || active_ >= kMaxRequests) {
    progress();
    connection_.throw_if_failed();
    if (unanswered_ > 0 || active_ >= kMaxRequests) return nullptr;
  }
  auto request = std::make_unique<TcpSendRequest>(*this, bytes);
  Message& started = request->message;
  started.data = static_cast<const std::byte*>(data);
  Stream& first = connection_.streams.front();

  const bool eager = eager_size && credits_ >= credits_of(bytes);
  if (!eager) {
    std::copy(head.begin(), head.end(), started.head.begin());
    started.head_bytes = head.size();
  }
  const std::optional<Announced> announced = take_announcement(tag);
  if (!eager && announced && bytes <= announced->capacity) {
    started.receive = announced->receive;
    large_.push_back(&started);
    queue_piece(started, first);
  } else {
    started.number = ++number_;
    if (!announced) unseen_.push_back({tag, started.number});
    Frame frame;
    frame.tag = tag;
    frame.number = started.number;
    frame.bytes = bytes;
    if (eager) {
      credits_ -= credits_of(bytes);
      frame.type = FrameType::kEager;
      frame.piece = bytes;
      if (connection_.checksums) frame.checksum = wire_checksum(started.data, bytes);
      started.unsent = kFrameBytes + bytes;
      started.handed_out = true;
      first.queue(frame, head, rest_bytes > 0 ? started.data : nullptr, &started.unsent);
      held_back_ = true;
      if (bytes <= kAtOnceBytes && !more_follow_) write_held_back();
      return request;
    }
    frame.type = FrameType::kRequest;
    first.queue(frame, {}, nullptr, nullptr);
    waiting_.push_back(&started);
  }
  progress();
  return request;
}

bool TcpSender::add_descriptors(std::vector<pollfd>& to) const {
  if (connection_.failed() || unanswered_ > 0 || held_back_) return false;
  const std::size_t first = to.size();
  for (const Stream& stream : connection_.streams) {
    // The receiver's announcements, grants and credits come on the first one.
    const short reads = to.size() == first ? POLLIN : 0;
    to.push_back({stream.fd(), static_cast<short>(reads | (stream.idle() ? 0 : POLLOUT)), 0});
  }
  return true;
}

void TcpSender::write_held_back() {
  if (!std::exchange(held_back_, false) || connection_.failed()) return;
  if (!connection_.streams.front().flush()) progress();  // finds out why, and fails the connection
}

void TcpSender::progress() {
  if (connection_.failed() || (unanswered_ > 0 && !answered())) return;
  Stream& first = connection_.streams.front();
  if (!first.read(*this)) connection_.fail(Errc::kPeerLost, first.reason());
  if (connection_.failed()) return;
  for (Stream& stream : connection_.streams) {
    if (!stream.flush()) {
      // The receiver may have said why before it went.
      first.read(*this);
      connection_.fail(Errc::kPeerLost, stream.reason());
      return;
    }
  }
  hand_out_pieces();
}

void TcpSender::hand_out_pieces() {
  for (std::size_t i = 0; i < connection_.streams.size(); ++i) {
    Stream& stream = connection_.streams[i];
    while (!large_.empty() && stream.idle()) {
      queue_piece(*large_.front(), stream);
      if (!stream.flush()) {
        connection_.fail(Errc::kPeerLost, stream.reason());
        return;
      }
    }
  }
}

void TcpSender::queue_piece(Message& message, Stream& stream) {
  Frame frame;
  frame.type = FrameType::kData;
  frame.id = message.receive;
  frame.bytes = message.bytes;
  frame.offset = message.next_offset;
  frame.piece = std::min(kPieceBytes, message.bytes - message.next_offset);
  std::span<const std::byte> head;
  const std::byte* payload = message.data;
  if (message.next_offset == 0) {
    head = {message.head.data(), message.head_bytes};
  } else {
    payload += message.next_offset - message.head_bytes;
  }
  if (connection_.checksums) frame.checksum = wire_checksum(payload, frame.piece);
  message.next_offset += frame.piece;
  message.unsent += kFrameBytes + frame.piece;
  if (message.next_offset == message.bytes) {
    message.handed_out = true;
    std::erase(large_, &message);
  }
  stream.queue(frame, head, frame.piece > head.size() ? payload : nullptr, &message.unsent);
}

std::optional<TcpSender::Announced> TcpSender::take_announcement(std::uint32_t tag) {
  const auto found = std::find_if(announced_.begin(), announced_.end(),
                                  [&](const Announced& entry) { return entry.tag == tag; });
  if (found == announced_.end()) return std::nullopt;
  const Announced taken = *found;
  announced_.erase(found);
  return taken;
}

void TcpSender::seen(std::uint64_t number) {
  while (!unseen_.empty() && unseen_.front().number <= number) unseen_.pop_front();
}

PayloadTarget TcpSender::begin_frame(const Frame& /*frame*/) { return {}; }

void TcpSender::end_frame(const Frame& frame, const PayloadTarget& /*payload*/) {
  if (frame.type == FrameType::kBroken) {
    connection_.fail(Errc::kPeerLost,
                     fmt::format("a message of {} bytes was sent for a receive of {} bytes",
                                 frame.bytes, frame.offset));
    return;
  }
  seen(frame.number);
  credits_ = std::min(credits_ + frame.piece, kEagerCredits);
  if (frame.type == FrameType::kAnnounce) {
    const auto earlier = std::find_if(unseen_.begin(), unseen_.end(), [&](const Unseen& message) {
      return message.tag == frame.tag;
    });
    if (earlier != unseen_.end()) {
      unseen_.erase(earlier);
    } else if (announced_.size() < kMaxRequests * kMaxGroup) {
      announced_.push_back({frame.tag, frame.id, frame.bytes});
    } else {
      connection_.fail(Errc::kPeerLost, "it announced more receives than it can have");
    }
  } else if (frame.type == FrameType::kGrant) {
    const auto granted =
        std::find_if(waiting_.begin(), waiting_.end(),
                     [&](const Message* message) { return message->number == frame.number; });
    if (granted == waiting_.end()) {
      connection_.fail(Errc::kPeerLost, "it granted a message that was not sent");
      return;
    }
    Message& message = **granted;
    waiting_.erase(granted);
    message.receive = frame.id;
    large_.push_back(&message);
    queue_piece(message, connection_.streams.front());
  }
}

void TcpSender::abandon(Message* message) {
  std::erase(waiting_, message);
  std::erase(large_, message);
  connection_.fail(Errc::kAborted, "a send was cancelled before it completed");
}

// ---- receiving -----------------------------------------------------------------------------

TcpReceiver::TcpReceiver(std::vector<Stream> streams, std::string peer, bool checksums,
                         Linger& linger)
    : connection_(std::move(streams), std::move(peer), checksums, linger),
      ended_(connection_.streams.size(), false) {
  for (Stream& stream : connection_.streams) stream.flush();
}

TcpReceiver::~TcpReceiver() = default;

std::unique_ptr<Registration> TcpReceiver::register_memory(void* data, std::size_t bytes,
                                                           MemoryKind kind) {
  return HostRegistration::make(data, bytes, kind);
}

std::unique_ptr<Request> TcpReceiver::receive(std::span<const ReceiveBuffer> buffers) {
  check_buffers(buffers, kMaxGroup, kMaxMessageBytes);
  // What had come whole before the connection ended can still be received.
  if (connection_.failed() && !held(buffers)) connection_.throw_if_failed();
  if (active_ >= kMaxRequests) {
    progress();
    return nullptr;
  }
  auto request = std::make_unique<ReceiveRequest<TcpReceiver>>(*this, buffers);
  const bool large = std::any_of(buffers.begin(), buffers.end(), [](const ReceiveBuffer& buffer) {
    return buffer.bytes > kEagerBytes;
  });
  const bool wanted = large && small_in_row_ < kSmallInRow;
  if (wanted || queued_controls_ >= kControlBatch) flush_control();
  return request;
}

bool TcpReceiver::held(std::span<const ReceiveBuffer> buffers) const {
  return std::all_of(buffers.begin(), buffers.end(), [&](const ReceiveBuffer& buffer) {
    const auto wanted = std::count_if(buffers.begin(), buffers.end(),
                                      [&](const ReceiveBuffer& b) { return b.tag == buffer.tag; });
    const auto whole = std::count_if(arrivals_.begin(), arrivals_.end(), [&](const Arrival& entry) {
      return entry.complete && entry.receive == nullptr && entry.frame.tag == buffer.tag;
    });
    return whole >= wanted;
  });
}

std::unique_ptr<Request> TcpReceiver::flush(std::span<const ReceiveBuffer> buffers) {
  return std::make_unique<FinishedRequest>(std::vector<std::size_t>(buffers.size(), 0));
}

bool TcpReceiver::add_descriptors(std::vector<pollfd>& to) const {
  if (connection_.failed() || end_deadline_) return false;
  const Stream& first = connection_.streams.front();
  // What is queued until there is a batch waits for no room.
  const bool writes = queued_controls_ == 0 && !first.idle();
  to.push_back({first.fd(), static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), 0});
  for (std::size_t i = 1; i < connection_.streams.size() && in_pieces_ > 0; ++i) {
    to.push_back({connection_.streams[i].fd(), POLLIN, 0});
  }
  return true;
}

void TcpReceiver::progress() {
  if (connection_.failed()) return;
  read_stream(0);
  // The other streams carry only pieces of messages whose first piece came on the first one.
  if (in_pieces_ > 0 || end_deadline_) {
    for (std::size_t i = 1; i < ended_.size() && !connection_.failed(); ++i) read_stream(i);
  }
  if (connection_.failed()) return;
  if (end_deadline_) {
    const bool all = std::find(ended_.begin(), ended_.end(), false) == ended_.end();
    if (all || std::chrono::steady_clock::now() > *end_deadline_) {
      const auto first =
          static_cast<std::size_t>(std::find(ended_.begin(), ended_.end(), true) - ended_.begin());
      connection_.fail(Errc::kPeerLost, connection_.streams[first].reason());
    }
  }
}

void TcpReceiver::read_stream(std::size_t index) {
  if (ended_[index]) return;
  current_stream_ = index;
  Stream& stream = connection_.streams[index];
  // Queued data that did not fit into the socket. A failure is noticed when reading ends.
  if (index == 0 && queued_controls_ == 0) stream.flush();
  if (stream.read(*this) || connection_.failed()) return;
  ended_[index] = true;
  if (!end_deadline_) end_deadline_ = std::chrono::steady_clock::now() + kEndTogether;
}

void TcpReceiver::fail_unexpected(const Frame& frame) {
  connection_.fail(Errc::kPeerLost,
                   fmt::format("unexpected frame of type {} on stream {} (tag {}, {} of {} bytes)",
                               static_cast<std::uint32_t>(frame.type), current_stream_, frame.tag,
                               frame.piece, frame.bytes));
}

TcpReceiver::Posted* TcpReceiver::first_unmatched(std::uint32_t tag) {
  for (Posted* posted : posted_) {
    if (!posted->matched && posted->buffer.tag == tag) return posted;
  }
  return nullptr;
}

TcpReceiver::Posted* TcpReceiver::by_id(std::uint64_t id) {
  for (Posted* posted : posted_) {
    if (posted->id == id) return posted;
  }
  return nullptr;
}

bool TcpReceiver::take_message(Posted& posted, std::size_t bytes) {
  if (bytes > kEagerBytes) {
    small_in_row_ = 0;
  } else if (posted.buffer.bytes > kEagerBytes && small_in_row_ < kSmallInRow) {
    ++small_in_row_;
  }
  if (bytes > posted.buffer.bytes) {
    Frame frame;
    frame.type = FrameType::kBroken;
    frame.bytes = bytes;
    frame.offset = posted.buffer.bytes;
    connection_.streams.front().queue(frame, {}, nullptr, nullptr);
    flush_control();
    connection_.fail(Errc::kInvalidUsage,
                     fmt::format("a message of {} bytes (tag {}) came for a receive of {} bytes",
                                 bytes, posted.buffer.tag, posted.buffer.bytes));
    return false;
  }
  posted.matched = true;
  posted.bytes = bytes;
  if (bytes > kPieceBytes) ++in_pieces_;
  return true;
}

void TcpReceiver::finish(Posted& posted) {
  posted.finished = true;
  if (posted.bytes > kPieceBytes) --in_pieces_;
  std::erase(posted_, &posted);
}

PayloadTarget TcpReceiver::target_of(Posted& posted, const Frame& frame) {
  auto* const buffer = static_cast<std::byte*>(posted.buffer.data) + frame.offset;
  const bool whole = frame.piece == frame.bytes;
  posted.placed = posted.rest.data != nullptr && whole && frame.checksum == 0 &&
                  frame.bytes == posted.rest.offset + posted.rest.bytes;
  if (!posted.placed) return {nullptr, 0, buffer};
  return {buffer, posted.rest.offset, posted.rest.data};
}

PayloadTarget TcpReceiver::begin_frame(const Frame& frame) {
  if (frame.type == FrameType::kData) {
    Posted* posted = by_id(frame.id);
    if (posted == nullptr || (posted->matched && posted->bytes != frame.bytes)) {
      fail_unexpected(frame);
      return {};
    }
    if (!posted->matched && !take_message(*posted, frame.bytes)) return {};
    if (frame.piece > posted->bytes - posted->arrived) {
      fail_unexpected(frame);
      return {};
    }
    return target_of(*posted, frame);
  }
  if (current_stream_ != 0) {
    fail_unexpected(frame);
    return {};
  }
  seen_ = frame.number;
  Posted* posted = first_unmatched(frame.tag);
  if (frame.type == FrameType::kRequest) {
    if (posted != nullptr) {
      match_request(frame, *posted);
      return {};
    }
  } else if (posted != nullptr) {
    if (!take_message(*posted, frame.bytes)) return {};
    eager_target_ = posted;
    return target_of(*posted, frame);
  }
  if (arrivals_.size() >= kEagerCredits + kMaxRequests) {
    fail_unexpected(frame);
    return {};
  }
  Arrival& arrival = arrivals_.emplace_back();
  arrival.frame = frame;
  if (frame.type == FrameType::kRequest) {
    arrival.complete = true;
    return {};
  }
  arrival.payload = std::make_unique<std::byte[]>(frame.piece);
  reading_ = &arrival;
  return {nullptr, 0, arrival.payload.get()};
}

void TcpReceiver::end_frame(const Frame& frame, const PayloadTarget& payload) {
  if (frame.type == FrameType::kRequest) return;
  if (frame.checksum != 0 && wire_checksum(payload.rest, frame.piece) != frame.checksum) {
    connection_.fail(Errc::kPeerLost,
                     fmt::format("a piece of {} bytes arrived with a wrong checksum", frame.piece));
    return;
  }
  if (frame.type == FrameType::kData) {
    Posted* posted = by_id(frame.id);
    if (posted == nullptr) return fail_unexpected(frame);
    posted->arrived += frame.piece;
    if (posted->arrived == posted->bytes) finish(*posted);
    return;
  }
  if (Posted* posted = std::exchange(eager_target_, nullptr); posted != nullptr) {
    finish(*posted);
    return_credits(frame.bytes);
    return;
  }
  Arrival& arrival = *std::exchange(reading_, nullptr);
  arrival.complete = true;
  if (arrival.receive == nullptr) return;
  Posted& posted = *arrival.receive;
  copy_to_receive(posted.buffer.data, arrival.payload.get(), frame.piece, posted.buffer.bytes);
  finish(posted);
  arrivals_.remove_if([&](const Arrival& other) { return &other == &arrival; });
  return_credits(frame.bytes);
}

void TcpReceiver::match_request(const Frame& request, Posted& posted) {
  if (!take_message(posted, request.bytes)) return;
  Frame frame;
  frame.type = FrameType::kGrant;
  frame.id = posted.id;
  frame.number = request.number;
  queue_control(frame);
  flush_control();
}

void TcpReceiver::post(Posted& posted) {
  posted.id = next_id_++;
  posted_.push_back(&posted);
  const auto waiting = std::find_if(arrivals_.begin(), arrivals_.end(), [&](const Arrival& entry) {
    return entry.receive == nullptr && entry.frame.tag == posted.buffer.tag;
  });
  if (waiting == arrivals_.end()) {
    if (find_in_left_over(posted)) return;
    Frame frame;
    frame.type = FrameType::kAnnounce;
    frame.tag = posted.buffer.tag;
    frame.id = posted.id;
    frame.number = seen_;
    frame.bytes = posted.buffer.bytes;
    queue_control(frame);
    return;
  }
  if (waiting->frame.type == FrameType::kRequest) {
    const Frame request = waiting->frame;
    arrivals_.erase(waiting);
    match_request(request, posted);
    return;
  }
  if (!take_message(posted, waiting->frame.bytes)) return;
  if (!waiting->complete) {
    waiting->receive = &posted;
    return;
  }
  copy_to_receive(posted.buffer.data, waiting->payload.get(), posted.bytes, posted.buffer.bytes);
  finish(posted);
  arrivals_.erase(waiting);
  return_credits(posted.bytes);
}

bool TcpReceiver::find_in_left_over(const Posted& posted) {
  // While another receive waits, nothing is left over.
  if (posted_.size() > 1 || connection_.failed()) return false;
  current_stream_ = 0;
  if (!connection_.streams.front().read_left_over(*this)) {
    connection_.fail(Errc::kPeerLost, connection_.streams.front().reason());
  }
  return posted.matched;
}

void TcpReceiver::withdraw(Posted& posted) {
  connection_.fail(Errc::kAborted, "a receive was cancelled before it completed");
  std::erase(posted_, &posted);
  if (eager_target_ == &posted) eager_target_ = nullptr;
  for (Arrival& arrival : arrivals_) {
    if (arrival.receive == &posted) arrival.receive = nullptr;
  }
}

void TcpReceiver::return_credits(std::uint64_t message_bytes) {
  owed_credits_ += credits_of(message_bytes);
  if (owed_credits_ < kCreditBatch) return;
  Frame frame;
  frame.type = FrameType::kCredit;
  frame.number = seen_;
  queue_control(frame);
  flush_control();
}

void TcpReceiver::queue_control(Frame frame) {
  frame.piece = std::exchange(owed_credits_, 0);
  connection_.streams.front().queue(frame, {}, nullptr, nullptr);
  ++queued_controls_;
}

void TcpReceiver::flush_control() {
  queued_controls_ = 0;
  if (!connection_.failed()) connection_.streams.front().flush();
}

}  // namespace ropewalk::transport::tcp
