#include "transport/messaging/ofi/sender.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "transport/messaging/gpus.h"
#include "transport/simple_requests.h"

namespace ropewalk::transport::ofi {

using messaging::fill_pattern;
using messaging::kPatternTag;
using messaging::too_long;
using messaging::wire_checksum;

namespace {

// The receiver was closed while a message that it had requested was being sent: it may have
// arrived.
constexpr auto kPiecePatience = std::chrono::seconds(1);
// What is done with registered memory.
constexpr std::uint64_t kAccess = FI_SEND | FI_WRITE;
// Bytes of small messages that are over before their completion. What a provider has no room for
// yet leaves it with a later call, which may not come soon.
constexpr std::uint64_t kMostUnconfirmed = std::uint64_t{32} << 10U;

}  // namespace

// Of a message that has been copied: it is over when it has been given to the provider, if it waits
// for others, or at once. It counts as the others do: who holds as many as there may be has to let
// the connection make progress.
class CopiedSend final : public Request {
 public:
  CopiedSend(Sender& sender, std::size_t bytes) : sender_(sender), sizes_{bytes} {
    ++sender_.active_;
  }
  ~CopiedSend() override { --sender_.active_; }
  CopiedSend(const CopiedSend&) = delete;
  CopiedSend& operator=(const CopiedSend&) = delete;
  std::optional<std::size_t> test() override {
    if (!sender_.holds_joined_.load(std::memory_order_relaxed)) return sizes_[0];
    const Lock lock(sender_.fabric_.mutex);
    sender_.attend_now();
    if (!sender_.joined_.empty()) sender_.drive();  // the provider had no room
    sender_.throw_if_failed();
    return sender_.joined_.empty() ? std::optional(sizes_[0]) : std::nullopt;
  }
  [[nodiscard]] std::span<const std::size_t> sizes() const override { return sizes_; }

 private:
  Sender& sender_;
  std::array<std::size_t, 1> sizes_;
};

class SendRequest final : public Request {
 public:
  SendRequest(Sender& sender, std::span<const std::byte> head, const void* data,
              std::size_t data_bytes, std::uint32_t message_tag)
      : head_bytes(head.size()),
        body(static_cast<const std::byte*>(data)),
        bytes(head.size() + data_bytes),
        tag(message_tag),
        sender_(sender),
        sizes_{bytes} {
    std::copy(head.begin(), head.end(), head_.begin());
    operation.owner = this;
    operation.finished = [](Operation& ended, const std::string& error) {
      auto& request = *static_cast<SendRequest*>(ended.owner);
      request.sender_.piece_ended(request, error);
    };
    told.owner = this;
    told.finished = [](Operation& taken, const std::string&) {
      auto& request = *static_cast<SendRequest*>(taken.owner);
      request.sender_.set_told(request);
      request.sender_.judge(request);
    };
    ++sender_.active_;
  }
  ~SendRequest() override RW_NO_THREAD_ANALYSIS {
    if (finished.load(std::memory_order_acquire) && region.mr == nullptr) {
      --sender_.active_;
      return;
    }
    const Lock lock(sender_.fabric_.mutex);
    --sender_.active_;
    if (!finished) sender_.abandon(*this);
    region.close();
  }
  SendRequest(const SendRequest&) = delete;
  SendRequest& operator=(const SendRequest&) = delete;

  std::optional<std::size_t> test() override {
    if (!finished.load(std::memory_order_acquire)) {
      const Lock lock(sender_.fabric_.mutex);
      sender_.drive();
      if (!finished) {
        sender_.fail_if_peer_ended(*this);
        return std::nullopt;
      }
    }
    return bytes;
  }
  [[nodiscard]] std::span<const std::size_t> sizes() const override { return sizes_; }

  // The bytes from `from` on, as many as `most`, and where each piece of them is registered.
  struct Pieces {
    std::array<iovec, 2> at{};
    std::array<void*, 2> descriptors{};
    std::size_t count = 0;
    std::size_t bytes = 0;
  };
  [[nodiscard]] Pieces pieces(std::size_t from, std::size_t most) const {
    Pieces all;
    const auto add = [&](const std::byte* start, std::size_t length, void* registered) {
      length = std::min(length, most - all.bytes);
      if (length == 0) return;
      all.at[all.count] = {const_cast<std::byte*>(start), length};
      all.descriptors[all.count++] = registered;
      all.bytes += length;
    };
    if (from < head_bytes) add(head_.data() + from, head_bytes - from, nullptr);
    const std::size_t at = from < head_bytes ? 0 : from - head_bytes;
    add(body + at, bytes - head_bytes - at, descriptor);
    return all;
  }

  std::size_t head_bytes;
  const std::byte* body;
  std::size_t bytes;
  std::uint32_t tag;
  std::uint32_t index = 0;
  Operation operation;  // of a piece
  Operation told;       // the kDone behind the last
  std::size_t posted = 0;
  bool eager = false;  // sent before its receive is known
  bool done_told = false;
  bool tells_itself = false;  // its write does, so that no kDone follows
  void* descriptor = nullptr;
  const Region* gpu = nullptr;  // of a body in GPU memory
  Region region;                // for this message alone
  Sender::PostedReceive receive{};
  std::atomic<bool> finished = false;

 private:
  Sender& sender_;
  std::array<std::byte, kMaxHeadBytes> head_{};
  std::array<std::size_t, 1> sizes_;
};

Sender::Sender(std::shared_ptr<Endpoint> endpoint, SideChannel side, std::string peer,
               Verify verify, tcp::Linger& linger)
    : Connection(std::move(endpoint), std::move(side), std::move(peer), verify, linger) {
  copied_.owner = this;
  copied_.finished = [](Operation& ended, const std::string& error) {
    static_cast<Sender*>(ended.owner)->copy_ended(error);
  };
  enter();
}

Sender::~Sender() {
  if (!trials_.empty()) {
    // The receiver's memory for them is free at once if they have ended, and else not before its
    // endpoint is closed.
    const Lock lock(fabric_.mutex);
    (void)drive_until([this] { return unwritten_.empty() || failed(); });
  }
  trials_.clear();
  const Lock lock(fabric_.mutex);
  if (!failed() && greeted()) flush_controls();
  if (!joined_.empty()) {
    (void)drive_until([this]() RW_NO_THREAD_ANALYSIS { return failed() || send_joined(); });
  }
  fabric_.forget(copied_);
  side_.send(Note::kEnd, std::as_bytes(std::span(&messages_, 1)));
  leave();
}

bool Sender::ready() {
  throw_if_failed();
  if (verified_) return true;
  const Lock lock(fabric_.mutex);
  drive();
  // What the receiver has found comes over the side channel, and drive() may have enough to do for
  // other connections of this endpoint.
  if (trials_.size() == kPatternBytes.size()) look_at_side();
  throw_if_failed();
  begin_trials();
  if (closed_ && !verified_) {
    fail(Errc::kPeerLost, "the peer was closed before the connection was verified");
    throw_if_failed();
  }
  return verified_;
}

std::unique_ptr<Registration> Sender::register_memory(void* data, std::size_t bytes,
                                                      MemoryKind kind) {
  return register_kind(data, bytes, kind, fabric_.needs_local(), kAccess);
}

std::unique_ptr<Registration> Sender::register_dma_buf(void* data, std::size_t bytes,
                                                       const DmaBuf& buffer) {
  return register_gpu(data, bytes, kAccess, &buffer);
}

std::unique_ptr<Request> Sender::send(const void* data, std::size_t bytes, std::uint32_t tag,
                                      Registration* registration) {
  check_buffer(data, bytes, kMaxMessageBytes);
  if (const FabricRegistration* gpu = on_gpu(registration); gpu != nullptr) {
    gpu->check_holds(data, bytes);
  }
  if (!ready()) return nullptr;
  const Lock lock(fabric_.mutex);
  if (on_gpu(registration) == nullptr) {
    if (auto sent = send_copied({}, data, bytes, tag)) return sent;
  }
  return start({}, data, bytes, tag, registration);
}

std::unique_ptr<Request> Sender::send_split(std::span<const std::byte> head, const void* data,
                                            std::size_t bytes, std::uint32_t tag) {
  if (!splits_messages() || head.size() > kMaxHeadBytes) {
    return SendConnection::send_split(head, data, bytes, tag);
  }
  check_buffer(data, bytes, kMaxMessageBytes - kMaxHeadBytes);
  if (!ready()) return nullptr;
  const Lock lock(fabric_.mutex);
  if (auto sent = send_copied(head, data, bytes, tag)) return sent;
  return start(head, data, bytes, tag, nullptr);
}

std::unique_ptr<SendRequest> Sender::start(std::span<const std::byte> head, const void* data,
                                           std::size_t bytes, std::uint32_t tag,
                                           Registration* registration) {
  if (closed_) {
    fail(Errc::kPeerLost, "the peer was closed");
    throw_if_failed();
  }
  if (active_ >= kMaxRequests) {
    drive();
    throw_if_failed();
    return nullptr;
  }
  auto request = std::make_unique<SendRequest>(*this, head, data, bytes, tag);
  std::uint32_t& next = next_of(tag);
  request->index = next;
  const FabricRegistration* const gpu = on_gpu(registration);
  request->eager = request->bytes <= kEagerBytes && (gpu == nullptr || bytes == 0);
  if (request->eager) {
    bool sent = false;
    try {
      sent = start_eager(*request);
    } catch (const Error& error) {
      fail(error.code(), error.what());
      throw_if_failed();
    }
    if (!sent) {
      // It has not begun: there is nothing to cancel.
      request->finished = true;
      drive();
      throw_if_failed();
      return nullptr;
    }
  } else {
    if (gpu != nullptr) {
      request->gpu = &gpu->region;
      request->descriptor = gpu->region.descriptor;
    } else if (fabric_.needs_local()) {
      if (auto* known = dynamic_cast<FabricRegistration*>(registration); known != nullptr) {
        request->descriptor = known->region.descriptor;
      } else {
        request->region = fabric_.register_memory(const_cast<void*>(data), bytes, kAccess);
        request->descriptor = request->region.descriptor;
      }
    }
    start_large(*request);
  }
  ++next;
  ++messages_;
  return request;
}

std::uint32_t& Sender::next_of(std::uint32_t tag) {
  if (last_next_ == nullptr || tag != last_tag_) {
    last_next_ = &next_[tag];
    last_tag_ = tag;
  }
  return *last_next_;
}

Header Sender::eager_header(std::uint32_t tag, std::uint32_t index, std::size_t bytes) const {
  Header header;
  header.to = peer_number_;
  header.proof = peer_proof_;
  header.type = Type::kEager;
  header.tag = tag;
  header.index = index;
  header.bytes = bytes;
  return header;
}

void Sender::count_eager(const Header& header, Endpoint::Sent sent, bool over) {
  if (sent == Endpoint::Sent::kUnderWay) {
    unconfirmed_ = over ? unconfirmed_ + header.bytes : 0;
    if (!over) ++under_way_;
  }
  take_credits(header.tag, header.index, header.bytes);
}

void Sender::take_credits(std::uint32_t tag, std::uint32_t index, std::size_t bytes) {
  credits_ -= credits_of(bytes);
  if (!announced_.empty()) announced_.erase(key_of(tag, index));
}

bool Sender::join(std::span<const std::byte> head, const void* data, std::size_t bytes,
                  std::uint32_t tag) {
  JoinedHeader header;
  header.bytes = head.size() + bytes;
  const std::size_t begin = joined_.size();
  if (begin + sizeof header + header.bytes > kMostJoinedBytes) return false;
  std::uint32_t& next = next_of(tag);
  header.tag = tag;
  header.index = next;
  joined_.resize(begin + sizeof header + header.bytes);
  std::byte* to = joined_.data() + begin;
  std::memcpy(to, &header, sizeof header);
  to = std::ranges::copy(head, to + sizeof header).out;
  if (bytes > 0) std::memcpy(to, data, bytes);
  holds_joined_.store(true, std::memory_order_relaxed);
  take_credits(tag, next, header.bytes);
  ++next;
  ++messages_;
  return true;
}

bool Sender::send_joined() {
  if (joined_.empty()) return true;
  Header header = eager_header(0, 0, joined_.size());
  header.type = Type::kJoined;
  const iovec all{joined_.data(), joined_.size()};
  const Endpoint::Sent sent = fabric_.send(peer_, header, {&all, 1}, &copied_);
  if (sent == Endpoint::Sent::kNotNow) return false;
  if (sent == Endpoint::Sent::kUnderWay) unconfirmed_ += joined_.size();
  joined_.clear();
  holds_joined_.store(false, std::memory_order_relaxed);
  return true;
}

std::unique_ptr<Request> Sender::send_copied(std::span<const std::byte> head, const void* data,
                                             std::size_t bytes, std::uint32_t tag) {
  const std::size_t all = head.size() + bytes;
  if (all > kEagerBytes || closed_ || active_ >= kMaxRequests || credits_ < credits_of(all) ||
      unconfirmed_ >= kMostUnconfirmed || verify_ == Verify::kAll) {
    return nullptr;
  }
  try {
    bool joined = false;
    if (more_follow_ || !joined_.empty()) {
      joined = join(head, data, bytes, tag);
      if (!joined) {  // they make room for it
        if (!send_joined()) return nullptr;
        joined = more_follow_ && join(head, data, bytes, tag);
      }
    }
    if (joined) {
      if (!more_follow_) (void)send_joined();  // else with a later call
      return std::make_unique<CopiedSend>(*this, all);
    }
  } catch (const Error& error) {
    fail(error.code(), error.what());
    throw_if_failed();
  }
  std::uint32_t& next = next_of(tag);
  const Header header = eager_header(tag, next, all);
  const std::array<iovec, 2> pieces = {
      {{const_cast<std::byte*>(head.data()), head.size()}, {const_cast<void*>(data), bytes}}};
  Endpoint::Sent sent{};
  try {
    sent = fabric_.send(peer_, header, pieces, &copied_);
  } catch (const Error& error) {
    fail(error.code(), error.what());
    throw_if_failed();
  }
  if (sent == Endpoint::Sent::kNotNow) return nullptr;
  count_eager(header, sent, true);
  ++next;
  ++messages_;
  return std::make_unique<CopiedSend>(*this, all);
}

bool Sender::start_eager(SendRequest& request) {
  if (credits_ < credits_of(request.bytes) || !send_joined()) return false;
  Header header = eager_header(request.tag, request.index, request.bytes);
  const SendRequest::Pieces pieces = request.pieces(0, request.bytes);
  header.value = checksum_of(request);
  // The message is copied, so that it is over when the provider has it. Now and then one is not
  // over before its completion, which shows that all before it have left.
  const bool over = unconfirmed_ < kMostUnconfirmed;
  const Endpoint::Sent sent = fabric_.send(peer_, header, std::span(pieces.at).first(pieces.count),
                                           over ? &copied_ : &request.operation);
  if (sent == Endpoint::Sent::kNotNow) return false;
  if (over || sent == Endpoint::Sent::kThrough) request.finished = true;
  count_eager(header, sent, over);
  return true;
}

void Sender::start_large(SendRequest& request) {
  const auto receive = announced_.find(key_of(request.tag, request.index));
  if (receive != announced_.end()) {
    const PostedReceive found = receive->second;
    announced_.erase(receive);
    match(request, found);
    // Without progress, which over sockets is a system call or two, and receives what has come
    // before this leaves. (All-gathers and all-reduces of 64 KiB to 256 KiB between two ranks took
    // 1.05 to 1.4 times as long with it.)
    return attend_now();
  }
  Header header;
  header.type = Type::kRequest;
  header.tag = request.tag;
  header.index = request.index;
  header.bytes = request.bytes;
  try {
    if (!writes_) header.value = checksum_of(request);  // nothing follows a tagged message
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  }
  control(header);
  waiting_.push_back(&request);
  drive();
}

void Sender::match(SendRequest& request, const PostedReceive& receive) {
  if (receive.bytes < request.bytes) {
    return fail(Errc::kInvalidUsage, too_long(request.bytes, request.tag, receive.bytes));
  }
  request.receive = receive;
  to_post_.push_back(&request);
}

bool Sender::post_piece(SendRequest& request) {
  if (request.operation.under_way) return true;
  const std::size_t most = std::min<std::size_t>(fabric_.max_bytes(), kMaxMessageBytes);
  const SendRequest::Pieces pieces = request.pieces(request.posted, most);
  const std::span<const iovec> from = std::span(pieces.at).first(pieces.count);
  std::array<void*, 2> descriptors = pieces.descriptors;
  bool taken = false;
  request.tells_itself = tells_itself(request, pieces.bytes);
  if (writes_) {
    const bool confirmed =
        fabric_.device().large == LargePath::kWriteConfirmed && !request.tells_itself;
    const std::uint64_t word =
        request.tells_itself ? word_of(request.receive.ticket, request.bytes) : 0;
    taken = fabric_.write({peer_, request.receive.value + request.posted, request.receive.key},
                          from, descriptors, confirmed, word, request.operation);
  } else {
    taken = fabric_.send_tagged(peer_, request.receive.value, from, descriptors, request.operation);
  }
  if (!taken) return false;
  if (writes_ && request.posted == 0) unwritten_.push_back(key_of(request.tag, request.index));
  request.posted += pieces.bytes;
  ++under_way_;
  if (request.posted == request.bytes && writes_ && !request.tells_itself &&
      fabric_.device().large == LargePath::kWriteInOrder) {
    tell_done(request);
  }
  return true;
}

bool Sender::tells_itself(const SendRequest& request, std::size_t piece_bytes) const {
  return writes_ && fabric_.writes_tell() && request.receive.ticket != 0 &&
         verify_ != Verify::kAll && piece_bytes == request.bytes &&
         request.bytes <= kMostBytesOfWord;
}

void Sender::set_told(SendRequest& request) {
  request.done_told = true;
  ++written_;
  std::erase(unwritten_, key_of(request.tag, request.index));
}

void Sender::tell_done(SendRequest& request) {
  Header header;
  header.type = Type::kDone;
  header.tag = request.tag;
  header.index = request.index;
  header.bytes = request.bytes;
  try {
    header.value = checksum_of(request);
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  }
  control(header, &request.told);
}

std::uint64_t Sender::checksum_of(const SendRequest& request) const {
  if (verify_ != Verify::kAll) return 0;
  return request.gpu != nullptr
             ? messaging::gpu_checksum(*request.gpu->gpu, request.body, request.bytes)
             : wire_checksum(request.body, request.bytes);
}

void Sender::attend() {
  if (!send_joined()) return flush_controls();
  while (!to_post_.empty()) {
    SendRequest& request = *to_post_.front();
    if (request.operation.under_way || !post_piece(request)) break;
    if (request.posted < request.bytes) break;
    to_post_.pop_front();
  }
  flush_controls();
}

void Sender::copy_ended(const std::string& error) {
  if (!error.empty()) fail(Errc::kPeerLost, fmt::format("a small message: {}", error));
}

void Sender::piece_ended(SendRequest& request, const std::string& error) {
  --under_way_;
  if (error.empty() && request.tells_itself) set_told(request);
  if (!error.empty()) {
    fail(Errc::kPeerLost,
         fmt::format("a message of {} bytes (tag {}): {}", request.bytes, request.tag, error));
  }
  if (failed()) return tell_stopped();
  const bool all = !request.eager && request.posted == request.bytes;
  if (all && writes_ && !request.tells_itself &&
      fabric_.device().large == LargePath::kWriteConfirmed) {
    tell_done(request);
  }
  judge(request);
}

void Sender::judge(SendRequest& request) {
  if (request.operation.under_way) return;
  if (request.eager || (request.posted == request.bytes && (!writes_ || request.done_told))) {
    request.finished.store(true, std::memory_order_release);
  }
}

void Sender::fail_if_peer_ended(const SendRequest& request) {
  throw_if_failed();
  if (!closed_) return;
  const bool begun = request.operation.under_way || request.posted > 0;
  if (begun && Clock::now() - closed_at_ < kPiecePatience) return;
  fail(Errc::kPeerLost, peer_gone() ? side_.reason() : "the receiver was closed");
  throw_if_failed();
}

void Sender::abandon(SendRequest& request) {
  fail(Errc::kAborted, "a send was cancelled before it completed");
  std::erase(waiting_, &request);
  std::erase(to_post_, &request);
  if (!request.operation.under_way) return;
  if (request.eager) {
    fabric_.forget(request.operation);
    --under_way_;
  } else if (!drive_until([&] { return !request.operation.under_way; })) {
    fabric_.retire(fmt::format("{} does not let go of a message of {} bytes that was given up",
                               fabric_.device().provider, request.bytes));
  }
  tell_stopped();
}

void Sender::tell_stopped() {
  if (under_way_ > 0 || stopped_told_) return;
  stopped_told_ = true;
  std::vector<std::uint64_t> told = {written_};
  told.insert(told.end(), unwritten_.begin(), unwritten_.end());
  side_.send(Note::kStopped, std::as_bytes(std::span(told)));
}

void Sender::on_failed() {
  joined_.clear();
  holds_joined_.store(false, std::memory_order_relaxed);
  // A closed endpoint has no operations in progress.
  tell_stopped();
}

void Sender::on_greeted() {
  if (verifies_) return;
  next_[kPatternTag] = kPatternBytes.size();
  verified_ = true;
}

void Sender::begin_trials() {
  if (!greeted() || verified_) return;
  if (pattern_.empty()) {
    pattern_.resize(std::accumulate(kPatternBytes.begin(), kPatternBytes.end(), std::size_t{0}));
    fill_pattern(pattern_, seed_);
  }
  std::size_t at = 0;
  for (std::size_t i = 0; i < kPatternBytes.size(); at += kPatternBytes[i++]) {
    if (i < trials_.size()) continue;
    auto request = start({}, pattern_.data() + at, kPatternBytes[i], kPatternTag, nullptr);
    if (request == nullptr) return;
    trials_.push_back(std::move(request));
  }
  const bool all = std::all_of(trials_.begin(), trials_.end(),
                               [](const auto& trial) { return trial->finished.load(); });
  if (!patterns_right_ || !all) return;
  for (const auto& trial : trials_) trial->region.close();
  trials_.clear();
  pattern_.clear();
  verified_ = true;
}

void Sender::on_note(const SideChannel::Received& note) {
  if (note.note == Note::kVerified) patterns_right_ = true;
  if (note.note == Note::kEnd && !closed_) {
    closed_ = true;
    closed_at_ = Clock::now();
  }
}

void Sender::handle(const Header& header, std::span<const std::byte> payload) {
  if (failed()) return;
  if (header.type != Type::kAnnounce) {
    credits_ = std::min(kEagerCredits, credits_ + header.credits);
  }
  if (header.type == Type::kCredit) return;
  if (header.type != (writes_ ? Type::kAnnounce : Type::kGrant)) {
    return fail(Errc::kPeerLost, fmt::format("a message of type {} came to a sender",
                                             static_cast<std::uint32_t>(header.type)));
  }
  PostedReceive receive{header.bytes, header.value, header.key, 0};
  if (header.type == Type::kGrant) return take_receive(header.tag, header.index, receive);
  const std::uint32_t first_ticket = header.credits;
  for (std::uint32_t i = 0; i < announced_in(payload.size()); ++i) {
    if (i > 0) {
      std::memcpy(&receive.value, payload.data() + (i - 1) * sizeof receive.value,
                  sizeof receive.value);
    }
    receive.ticket = first_ticket == 0 ? 0 : first_ticket + i;
    take_receive(header.tag, header.index + i, receive);
  }
}

void Sender::take_receive(std::uint32_t tag, std::uint32_t index, const PostedReceive& receive) {
  if (failed()) return;
  const auto waiting = std::find_if(
      waiting_.begin(), waiting_.end(),
      [&](const SendRequest* request) { return request->tag == tag && request->index == index; });
  if (waiting != waiting_.end()) {
    SendRequest& request = **waiting;
    waiting_.erase(waiting);
    return match(request, receive);
  }
  // A message that was small has been sent already: it needs no announcement.
  const auto next = next_.find(tag);
  const std::uint32_t sent = next == next_.end() ? 0 : next->second;
  if (static_cast<std::int32_t>(index - sent) < 0) return;
  if (announced_.size() > kMaxRequests * kMaxGroup) {
    return fail(Errc::kPeerLost, "the receiver announced more receives than it may have");
  }
  announced_.emplace(key_of(tag, index), receive);
}

std::string Sender::describe() const {
  const Lock lock(fabric_.mutex);
  if (!greeted()) return "the peer's hello";
  if (!verified_) return "the patterns that verify the connection";
  if (!waiting_.empty()) {
    return fmt::format("the receive of a message of {} bytes (tag {})", waiting_.front()->bytes,
                       waiting_.front()->tag);
  }
  if (!joined_.empty()) return fmt::format("{} to take small messages", fabric_.device().provider);
  if (under_way_ > 0 || !to_post_.empty()) {
    return fmt::format("{} to send {} pieces", fabric_.device().provider,
                       under_way_ + to_post_.size());
  }
  if (credits_ < credits_of(kEagerBytes)) return "the receiver, which holds many messages already";
  return {};
}

}  // namespace ropewalk::transport::ofi
