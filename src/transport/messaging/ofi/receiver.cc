#include "transport/messaging/ofi/receiver.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "transport/receive_copy.h"
#include "transport/simple_requests.h"

namespace ropewalk::transport::ofi {

using messaging::fill_pattern;
using messaging::kPatternTag;
using messaging::too_long;
using messaging::wire_checksum;

namespace {

constexpr std::uint64_t kCreditBatch = kEagerCredits / 4;
// After this many small messages into long receives, long ones are announced only on request: an
// announcement costs as much as a small message.
constexpr unsigned kSmallInRow = 4;
// Receives that a sender needs to know: further ones are announced together.
constexpr std::size_t kEnoughKnown = 3;
constexpr std::size_t kAnnouncedAtOnce = 4;
static_assert(kAnnouncedAtOnce <= kMostAnnounced);
// The longest time that messages of a closed sender are in flight.
constexpr auto kLastMessages = std::chrono::seconds(5);
// The same of one whose process has died.
constexpr auto kLastWords = std::chrono::milliseconds(50);
// What is done with registered memory; with a GPU's also what gets small messages there, and
// flushes.
constexpr std::uint64_t kHostAccess = FI_RECV | FI_REMOTE_WRITE;
constexpr std::uint64_t kGpuAccess = kHostAccess | FI_READ | FI_REMOTE_READ;

}  // namespace

Receiver::Receiver(std::shared_ptr<Endpoint> endpoint, SideChannel side, std::string peer,
                   Verify verify, tcp::Linger& linger)
    : Connection(std::move(endpoint), std::move(side), std::move(peer), verify, linger) {
  next_[kPatternTag] = kPatternBytes.size();
  enter();
}

Receiver::~Receiver() {
  const Lock lock(fabric_.mutex);
  // Not a member any more: who drives the endpoint for another connection judges none of these.
  if (const std::unique_ptr<Trials> trials = std::move(trials_)) {
    for (Posted& posted : trials->posted) {
      if (posted.receiver != nullptr && !posted.finished) withdraw_locked(posted);
    }
  }
  if (!failed() && greeted()) flush_controls();
  side_.send(Note::kEnd, "");
  leave();
}

bool Receiver::ready() {
  progress();
  throw_if_failed();
  const Lock lock(fabric_.mutex);
  if (!ready_ && closed_) {
    fail(Errc::kPeerLost, "the peer was closed before the connection was verified");
    Connection::throw_if_failed();
  }
  return ready_;
}

std::unique_ptr<Registration> Receiver::register_memory(void* data, std::size_t bytes,
                                                        MemoryKind kind) {
  const bool host = fabric_.device().large != LargePath::kTagged || fabric_.needs_local();
  return register_kind(data, bytes, kind, host,
                       kind == MemoryKind::kCuda ? kGpuAccess : kHostAccess);
}

std::unique_ptr<Registration> Receiver::register_dma_buf(void* data, std::size_t bytes,
                                                         const DmaBuf& buffer) {
  return register_gpu(data, bytes, kGpuAccess, &buffer);
}

std::unique_ptr<Request> Receiver::receive(std::span<const ReceiveBuffer> buffers) {
  check_buffers(buffers, kMaxGroup, kMaxMessageBytes);
  for (const ReceiveBuffer& buffer : buffers) {
    if (const FabricRegistration* gpu = on_gpu(buffer.registration); gpu != nullptr) {
      gpu->check_holds(buffer.data, buffer.bytes);
    }
  }
  // In a steady state nothing of this is so, and one lock less is taken.
  if (failed() || closed_ || active_ >= kMaxRequests) {
    const Lock lock(fabric_.mutex);
    Connection::throw_if_failed();
    if (closed_ || active_ >= kMaxRequests) drive();
    Connection::throw_if_failed();
    if (active_ >= kMaxRequests) return nullptr;
    if (closed_ && !held(buffers)) {
      if (!exhausted()) return nullptr;
      throw named(Errc::kPeerLost, "the sender was closed");
    }
  }
  return std::make_unique<ReceiveRequest<Receiver>>(*this, buffers);
}

void Receiver::post(Posted& posted) {
  const Lock lock(fabric_.mutex);
  try {
    posted.index = next_[posted.buffer.tag]++;
    post_locked(posted);
  } catch (const Error& error) {
    fail(error.code(), error.what());
  }
}

void Receiver::post_locked(Posted& posted) {
  posted.receiver = this;
  posted.gpu = on_gpu(posted.buffer.registration);
  const std::uint64_t key = key_of(posted.buffer.tag, posted.index);
  if (const auto early = early_.empty() ? early_.end() : early_.find(key); early != early_.end()) {
    const Early message = std::move(early->second);
    early_.erase(early);
    return take_eager(posted, message.data.data(), message.data.size(), message.checksum);
  }
  posted_.push_back(&posted);
  if (fabric_.device().large == LargePath::kTagged || (greeted() && !writes_)) {
    // Announced by nothing: the sender asks.
  } else if (is_announced_early(posted) && small_in_row_ < kSmallInRow) {
    announce(posted);
  }
  if (const auto request = requests_.empty() ? requests_.end() : requests_.find(key);
      request != requests_.end()) {
    const Requested message = request->second;
    requests_.erase(request);
    match_request(posted, message);
  }
}

bool Receiver::is_announced_early(const Posted& posted) {
  // Who receives into GPU memory is likely to be sent to from GPU memory.
  return posted.buffer.bytes > (posted.gpu != nullptr ? 0 : kEagerBytes);
}

void Receiver::announce(Posted& posted) {
  const Region* region = &posted.region;
  if (auto* known = dynamic_cast<FabricRegistration*>(posted.buffer.registration);
      known != nullptr) {
    if (known->region.mr == nullptr) {
      return fail(Errc::kAborted, "its memory's registration ended when a receive was given up");
    }
    region = &known->region;
  } else if (posted.region.mr == nullptr) {
    posted.region =
        fabric_.register_memory(posted.buffer.data, posted.buffer.bytes, FI_RECV | FI_REMOTE_WRITE);
  }
  if (!greeted()) return;  // on_greeted() does it
  posted.announced = true;
  posted.address = fabric_.remote_address(*region, posted.buffer.data);
  posted.key = region->key;
  to_announce_.push_back(&posted);
}

void Receiver::send_announcements(bool all) {
  // A sender that knows enough receives is told of several more at once.
  if (!all && known_to_peer_ >= kEnoughKnown && to_announce_.size() < kAnnouncedAtOnce) return;
  for (std::size_t begin = 0; begin < to_announce_.size();) {
    const Posted& first = *to_announce_[begin];
    std::array<std::uint64_t, kMostAnnounced> addresses;
    std::size_t count = 0;
    const auto follows = [&](const Posted& posted) {
      return posted.index == first.index + count && posted.key == first.key &&
             posted.buffer.tag == first.buffer.tag && posted.buffer.bytes == first.buffer.bytes;
    };
    while (count < kMostAnnounced && begin + count < to_announce_.size() &&
           follows(*to_announce_[begin + count])) {
      addresses[count] = to_announce_[begin + count]->address;
      ++count;
    }
    Header header;
    header.type = Type::kAnnounce;
    header.tag = first.buffer.tag;
    header.index = first.index;
    header.bytes = first.buffer.bytes;
    header.value = first.address;
    header.key = first.key;
    if (fabric_.writes_tell()) header.credits = fabric_.issue_tickets(*this, count);
    for (std::uint32_t i = 0; i < count; ++i) {
      to_announce_[begin + i]->ticket = header.credits == 0 ? 0 : header.credits + i;
      to_announce_[begin + i]->known_to_peer = true;
    }
    control_announcement(header, std::span(addresses).first(count));
    known_to_peer_ += count;
    begin += count;
  }
  to_announce_.clear();
}

void Receiver::withdraw_announcement(Posted& posted) {
  if (!posted.announced) return;
  if (!posted.known_to_peer) std::erase(to_announce_, &posted);
  if (std::exchange(posted.known_to_peer, false)) --known_to_peer_;
  if (const std::uint32_t ticket = std::exchange(posted.ticket, 0); ticket != 0) {
    fabric_.withdraw_ticket(ticket);
  }
}

void Receiver::match_request(Posted& posted, const Requested& message) {
  if (message.bytes > posted.buffer.bytes) {
    return fail(Errc::kInvalidUsage,
                too_long(message.bytes, posted.buffer.tag, posted.buffer.bytes));
  }
  if (writes_) {
    // Long messages have begun again, unless its announcement is already in flight.
    small_in_row_ = 0;
    for (Posted* const each : posted_) {
      // The requested message may be a small one, from GPU memory.
      if (!each->announced && (each == &posted || is_announced_early(*each))) announce(*each);
    }
    // It waits for one of them, unless that is on its way.
    return send_announcements(true);
  }
  if (posted.gpu != nullptr) {
    posted.descriptor = posted.gpu->region.descriptor;
  } else if (fabric_.needs_local()) {
    if (auto* known = dynamic_cast<FabricRegistration*>(posted.buffer.registration);
        known != nullptr) {
      posted.descriptor = known->region.descriptor;
    } else {
      posted.region = fabric_.register_memory(posted.buffer.data, posted.buffer.bytes, FI_RECV);
      posted.descriptor = posted.region.descriptor;
    }
  }
  posted.bytes = message.bytes;
  posted.checksum = message.checksum;
  posted.operation.owner = &posted;
  posted.operation.finished = [](Operation& operation, const std::string& error) {
    auto& ended = *static_cast<Posted*>(operation.owner);
    ended.receiver->tagged_ended(ended, error);
  };
  if (!grant(posted)) to_grant_.push_back(&posted);
}

bool Receiver::grant(Posted& posted) {
  const std::uint64_t tag = fabric_.next_tag();
  if (!fabric_.receive_tagged(tag, posted.buffer.data, posted.bytes, posted.descriptor,
                              posted.operation)) {
    return false;
  }
  Header header;
  header.type = Type::kGrant;
  header.tag = posted.buffer.tag;
  header.index = posted.index;
  header.credits = static_cast<std::uint32_t>(std::exchange(owed_credits_, 0));
  header.bytes = posted.bytes;
  header.value = tag;
  control(header);
  return true;
}

void Receiver::tagged_ended(Posted& posted, const std::string& error) {
  if (!error.empty()) {
    return fail(Errc::kPeerLost, fmt::format("a message of {} bytes (tag {}): {}", posted.bytes,
                                             posted.buffer.tag, error));
  }
  ++arrived_;
  finish(posted, posted.bytes, posted.checksum);
}

void Receiver::take_eager(Posted& posted, const std::byte* data, std::uint64_t bytes,
                          std::uint64_t checksum) {
  if (bytes > posted.buffer.bytes) {
    return fail(Errc::kInvalidUsage, too_long(bytes, posted.buffer.tag, posted.buffer.bytes));
  }
  if (is_announced_early(posted) && small_in_row_ < kSmallInRow) ++small_in_row_;
  if (posted.gpu != nullptr && bytes > 0) {
    put_on_gpu(posted, {data, bytes}, checksum);
  } else {
    copy_to_receive(posted.buffer.data, data, bytes, posted.buffer.bytes);
    finish(posted, bytes, checksum);
  }
  return_credits(bytes);
}

void Receiver::finish(Posted& posted, std::uint64_t bytes, std::uint64_t checksum) {
  if (checksum != 0) {
    if (posted.gpu != nullptr && bytes > 0) return check_on_gpu(posted, bytes, checksum);
    if (wire_checksum(posted.buffer.data, bytes) != checksum) return fail_checksum(bytes);
  }
  posted.bytes = bytes;
  end(posted);
}

void Receiver::end(Posted& posted) {
  posted.region.close();
  withdraw_announcement(posted);
  std::erase(posted_, &posted);
  posted.finished.store(true, std::memory_order_release);
}

void Receiver::fail_checksum(std::uint64_t bytes) {
  fail(Errc::kPeerLost, fmt::format("a message of {} bytes arrived with a wrong checksum", bytes));
}

void Receiver::return_credits(std::uint64_t bytes) {
  owed_credits_ += credits_of(bytes);
  if (owed_credits_ < kCreditBatch) return;
  Header header;
  header.type = Type::kCredit;
  header.credits = static_cast<std::uint32_t>(std::exchange(owed_credits_, 0));
  control(header);
}

Receiver::Posted* Receiver::find(std::uint32_t tag, std::uint32_t index) {
  const auto found = std::find_if(posted_.begin(), posted_.end(), [&](const Posted* each) {
    return each->index == index && each->buffer.tag == tag;
  });
  return found == posted_.end() ? nullptr : *found;
}

bool Receiver::take_small(std::uint32_t tag, std::uint32_t index, std::span<const std::byte> data,
                          std::uint64_t checksum) {
  ++arrived_;
  if (Posted* const posted = find(tag, index); posted != nullptr) {
    take_eager(*posted, data.data(), data.size(), checksum);
    return true;
  }
  if (early_.size() > kEagerCredits) return false;
  early_.emplace(key_of(tag, index), Early{{data.begin(), data.end()}, checksum});
  return true;
}

bool Receiver::take_joined_messages(std::span<const std::byte> all) {
  while (!all.empty()) {
    const std::optional<JoinedMessage> next = take_joined(all);
    if (!next) return false;
    if (failed()) {
      ++arrived_;
    } else if (!take_small(next->header.tag, next->header.index, next->data, 0)) {
      return false;
    }
  }
  return true;
}

void Receiver::handle(const Header& header, std::span<const std::byte> payload) {
  if (failed()) {
    // What has been written is still of interest: withdraw() waits for it.
    if (header.type == Type::kEager || header.type == Type::kDone) ++arrived_;
    if (header.type == Type::kDone) ++written_arrived_;
    while (header.type == Type::kJoined && take_joined(payload)) ++arrived_;
    return;
  }
  last_arrival_ = closed_ ? Clock::now() : Clock::time_point{};
  switch (header.type) {
    case Type::kEager:
      if (take_small(header.tag, header.index, payload, header.value)) return;
      break;
    case Type::kJoined:
      if (take_joined_messages(payload)) return;
      break;
    case Type::kRequest:
      if (Posted* const posted = find(header.tag, header.index); posted != nullptr) {
        return match_request(*posted, {header.bytes, header.value});
      }
      if (requests_.size() > kMaxRequests) break;
      requests_.emplace(key_of(header.tag, header.index), Requested{header.bytes, header.value});
      return;
    case Type::kDone: {
      Posted* const posted = find(header.tag, header.index);
      if (posted == nullptr || !posted->known_to_peer || header.bytes > posted->buffer.bytes) break;
      ++arrived_;
      ++written_arrived_;
      return finish(*posted, header.bytes, header.value);
    }
    case Type::kAnnounce:
    case Type::kGrant:
    case Type::kCredit: break;
  }
  fail(Errc::kPeerLost,
       fmt::format("an unexpected message of type {} came (tag {}, {} bytes)",
                   static_cast<std::uint32_t>(header.type), header.tag, header.bytes));
}

void Receiver::on_greeted() {
  try {
    if (writes_) {
      for (Posted* const posted : posted_) {
        if (posted->buffer.bytes > kEagerBytes) announce(*posted);
      }
    }
    if (!verifies_) {
      ready_ = true;
      return;
    }
    trials_ = std::make_unique<Trials>();
    trials_->memory.resize(
        std::accumulate(kPatternBytes.begin(), kPatternBytes.end(), std::size_t{0}));
    std::size_t at = 0;
    for (std::size_t i = 0; i < kPatternBytes.size(); at += kPatternBytes[i++]) {
      trials_->posted[i].buffer = {trials_->memory.data() + at, kPatternBytes[i], kPatternTag,
                                   nullptr};
      trials_->posted[i].index = static_cast<std::uint32_t>(i);
      post_locked(trials_->posted[i]);
    }
  } catch (const Error& error) {
    fail(error.code(), error.what());
  }
}

void Receiver::judge_trials() {
  for (const Posted& posted : trials_->posted) {
    if (!posted.finished) return;
  }
  std::vector<std::byte> expected(trials_->memory.size());
  fill_pattern(expected, seed_);
  std::size_t at = 0;
  for (std::size_t i = 0; i < kPatternBytes.size(); at += kPatternBytes[i++]) {
    const Posted& posted = trials_->posted[i];
    if (posted.bytes == kPatternBytes[i] &&
        std::memcmp(expected.data() + at, trials_->memory.data() + at, kPatternBytes[i]) == 0) {
      continue;
    }
    return fail(
        Errc::kPeerLost,
        fmt::format(
            "verification: a pattern of {} bytes arrived changed (by {})", kPatternBytes[i],
            kPatternBytes[i] > kEagerBytes ? name(fabric_.device().large) : "a small message"));
  }
  trials_.reset();
  ready_ = true;
  side_.send(Note::kVerified, "");
}

void Receiver::on_written(std::uint32_t ticket, std::uint64_t bytes) {
  ++arrived_;
  ++written_arrived_;
  if (failed()) return;
  last_arrival_ = closed_ ? Clock::now() : Clock::time_point{};
  const auto posted = std::find_if(posted_.begin(), posted_.end(),
                                   [&](const Posted* each) { return each->ticket == ticket; });
  if (posted == posted_.end() || bytes > (*posted)->buffer.bytes) {
    return fail(Errc::kPeerLost, fmt::format("{} bytes were written for no posted receive", bytes));
  }
  (*posted)->ticket = 0;
  finish(**posted, bytes, 0);
}

void Receiver::attend() {
  send_announcements(false);
  start_all_for_gpu();
  while (!to_grant_.empty() && grant(*to_grant_.front())) to_grant_.erase(to_grant_.begin());
  if (trials_) judge_trials();
  flush_controls();
}

void Receiver::on_note(const SideChannel::Received& note) {
  if (note.note == Note::kStopped) {
    stopped_ = true;
    std::vector<std::uint64_t> told(note.payload.size() / sizeof(std::uint64_t));
    std::memcpy(told.data(), note.payload.data(), told.size() * sizeof(std::uint64_t));
    if (!told.empty()) {
      written_ = told.front();
      unwritten_.assign(told.begin() + 1, told.end());
    }
  }
  if (note.note != Note::kEnd || closed_) return;
  closed_ = true;
  closed_at_ = Clock::now();
  stopped_ = true;
  if (note.payload.size() == sizeof(std::uint64_t)) {
    std::uint64_t total = 0;
    std::memcpy(&total, note.payload.data(), sizeof total);
    total_ = total;
  }
}

void Receiver::progress() {
  const Lock lock(fabric_.mutex);
  drive();
}

void Receiver::throw_if_failed() {
  Connection::throw_if_failed();
  if (!closed_) return;
  const Lock lock(fabric_.mutex);
  if (settling_ > 0 || !exhausted()) return;
  throw named(Errc::kPeerLost, total_ ? "the sender was closed" : side_.reason());
}

bool Receiver::exhausted() {
  if (!closed_) return false;
  if (total_ && arrived_ >= *total_) return true;
  const Clock::time_point last = std::max(last_arrival_, closed_at_);
  return Clock::now() - last > (total_ ? Clock::duration(kLastMessages) : kLastWords);
}

std::uint32_t Receiver::next_of(const Index& counters, std::uint32_t tag) const {
  const auto known = counters.find(tag);
  return known == counters.end() ? 0 : known->second;
}

bool Receiver::held(std::span<const ReceiveBuffer> buffers) const {
  Index ahead;
  return std::all_of(buffers.begin(), buffers.end(), [&](const ReceiveBuffer& buffer) {
    const std::uint32_t index = next_of(next_, buffer.tag) + ahead[buffer.tag]++;
    return early_.contains(key_of(buffer.tag, index));
  });
}

bool Receiver::half_written(const Posted& posted) const {
  return std::ranges::find(unwritten_, key_of(posted.buffer.tag, posted.index)) != unwritten_.end();
}

bool Receiver::left_alone(const Posted& posted) const {
  // Of a sender that was closed in order every message has arrived.
  if (closed_ && total_ && arrived_ >= *total_) return true;
  return written_ && written_arrived_ >= *written_ && !half_written(posted);
}

void Receiver::withdraw(Posted& posted) {
  const Lock lock(fabric_.mutex);
  withdraw_locked(posted);
}

void Receiver::withdraw_locked(Posted& posted) {
  look_at_side();
  const bool over = closed_ && exhausted();
  if (!over) fail(Errc::kAborted, "a receive was cancelled before it completed");
  std::erase(posted_, &posted);
  std::erase(to_grant_, &posted);
  const bool unknown = posted.announced && !posted.known_to_peer;
  if (unknown) withdraw_announcement(posted);
  std::erase_if(for_gpu_, [&](const ForGpu& work) { return work.posted == &posted; });
  set_settling(posted, false);
  const auto give_up = [&](const char* what) RW_NO_THREAD_ANALYSIS {
    fabric_.retire(
        fmt::format("{}, and a receive of {} bytes was given up", what, posted.buffer.bytes));
  };
  if (posted.operation.under_way) {
    fabric_.cancel(posted.operation);
    if (!drive_until([&] { return !posted.operation.under_way; })) {
      give_up(posted.gpu != nullptr ? "the provider does not let go of GPU memory"
                                    : "the provider does not let go of a tagged receive");
    }
  }
  if (!posted.announced || unknown || fabric_.retired()) return;
  // First no write can begin any more, then those that have begun end.
  posted.region.close();
  if (auto* known = dynamic_cast<FabricRegistration*>(posted.buffer.registration);
      known != nullptr && !over) {
    known->region.close();
  }
  if (over) return;
  if (!drive_until([this] { return stopped_ || peer_gone(); }) && !peer_gone()) {
    return give_up("the sender does not say that it has stopped writing");
  }
  stopped_ = true;
  const bool will_be = (written_ || total_) && !half_written(posted);
  if (will_be && drive_until([&] { return left_alone(posted); })) return;
  // What its provider has begun to send, that goes on sending, whatever its user says.
  give_up("the sender may have begun to write");
}

std::string Receiver::describe() const {
  const Lock lock(fabric_.mutex);
  if (!greeted()) return "the peer's hello";
  if (trials_) return "the patterns that verify the connection";
  if (posted_.empty()) return {};
  return fmt::format("a message of tag {}, the first of {} receives", posted_.front()->buffer.tag,
                     posted_.size());
}

}  // namespace ropewalk::transport::ofi
