#include "transport/rails/receiver.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/log.h"
#include "transport/few.h"
#include "transport/messaging/verification.h"
#include "transport/receive_copy.h"
#include "transport/simple_requests.h"

namespace ropewalk::transport::rails {
namespace {

using std::chrono::milliseconds;

// A sender may have so many messages under way: those that are copied, and its requests.
constexpr std::uint64_t kMostAhead = kCredits / kMessageCredits + 2 * kMaxRequests;
// Short messages are told of in batches: their sends are finished already.
constexpr std::uint64_t kTellEvery = 8;
constexpr std::size_t kBatchedBytes = 4 << 10;
constexpr std::uint64_t kTellCredits = kCredits / 8;
constexpr auto kReceiverCloseTime = std::chrono::seconds(1);
// The sender judges first, and makes rails again.
constexpr auto kLossMargin = milliseconds(500);
constexpr auto kFirstArrivalTime = std::chrono::seconds(10);

class ReceiveGroup final : public Request {
 public:
  ReceiveGroup(std::shared_ptr<ReceiverCore> core, std::span<const ReceiveBuffer> buffers)
      : core_(std::move(core)), posted_(buffers.size()), sizes_(buffers.size()) {
    for (std::size_t i = 0; i < buffers.size(); ++i) posted_.all()[i].buffer = buffers[i];
  }
  ~ReceiveGroup() override {
    if (started_) core_->drop(posted_.all());
  }
  ReceiveGroup(const ReceiveGroup&) = delete;
  ReceiveGroup& operator=(const ReceiveGroup&) = delete;

  bool start() { return started_ = core_->post(posted_.all()); }
  std::optional<std::size_t> test() override {
    if (!finished_) finished_ = core_->finished(posted_.all());
    if (!finished_) return std::nullopt;
    std::size_t total = 0;
    for (std::size_t i = 0; i < posted_.size(); ++i) {
      total += sizes_.all()[i] = posted_.all()[i].bytes;
    }
    return total;
  }
  [[nodiscard]] std::span<const std::size_t> sizes() const override { return sizes_.all(); }

 private:
  std::shared_ptr<ReceiverCore> core_;
  Few<Posted> posted_;
  Few<std::size_t> sizes_;
  bool started_ = false;
  bool finished_ = false;
};

}  // namespace

// ---- the connection's object ---------------------------------------------------------------

std::unique_ptr<Registration> RailsReceiver::register_memory(void* data, std::size_t bytes,
                                                             MemoryKind kind) {
  return HostRegistration::make(data, bytes, kind);
}

std::unique_ptr<Request> RailsReceiver::receive(std::span<const ReceiveBuffer> buffers) {
  check_buffers(buffers, kMaxGroup, kMaxMessageBytes);
  auto request = std::make_unique<ReceiveGroup>(core_, buffers);
  if (!request->start()) return nullptr;
  return request;
}

std::unique_ptr<Request> RailsReceiver::flush(std::span<const ReceiveBuffer> buffers) {
  return std::make_unique<FinishedRequest>(std::vector<std::size_t>(buffers.size(), 0));
}

// ---- what is asked of the core -------------------------------------------------------------

ReceiverCore::ReceiverCore(const Context& context, std::vector<std::byte> devices)
    : context_(context), devices_(std::move(devices)) {}

ReceiverCore::~ReceiverCore() = default;

void ReceiverCore::adopt(std::unique_ptr<ArrivingRail> rail, const Hello& hello) {
  const Lock lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (closing_ || error_) return;
  rail->number = hello.rail;
  rail->incarnation = hello.incarnation;
  rail->owes = true;
  const auto before = rails_.find(hello.rail);
  if (before != rails_.end()) {
    if (before->second->incarnation >= hello.incarnation) return;
    lose(hello.rail, "the sender made it again", now);
  }
  history_[hello.rail].name = rail->name;
  backs_[hello.rail] = hello.back;
  rails_[hello.rail] = std::move(rail);
  last_up_ = now;
  progress(now);
}

bool ReceiverCore::ready() {
  const Lock lock(mutex_);
  progress(Clock::now());
  if (error_) throw Error(*error_);
  return ever_up_;
}

bool ReceiverCore::post(std::span<Posted> posted) {
  const Lock lock(mutex_);
  if (over() && !held_for(posted)) throw_over();
  if (active_ >= kMaxRequests) {
    progress(Clock::now());
    return false;
  }
  ++active_;
  waiting_ += posted.size();
  for (Posted& each : posted) {
    const auto found =
        std::ranges::find_if(messages_, [&each, introduced = next_](const auto& entry) {
          return entry.first < introduced && entry.second.posted == nullptr &&
                 entry.second.tag == each.buffer.tag;
        });
    if (found == messages_.end()) {
      posted_.push_back(&each);
    } else {
      match(found->first, found->second, each);
    }
  }
  say_snapshots();
  return true;
}

bool ReceiverCore::finished(std::span<Posted> posted) {
  const Lock lock(mutex_);
  const auto done = [&] { return std::ranges::all_of(posted, &Posted::finished); };
  if (done()) return true;
  progress(Clock::now());
  if (done()) return true;
  if (error_) throw Error(*error_);
  if (over() && std::ranges::any_of(posted, [](const Posted& each) { return !each.matched; })) {
    throw_over();
  }
  return false;
}

void ReceiverCore::drop(std::span<Posted> posted) {
  const Lock lock(mutex_);
  --active_;
  for (Posted& each : posted) {
    if (each.finished) continue;
    --waiting_;
    std::erase(posted_, &each);
    for (auto& [number, message] : messages_) {
      if (message.posted == &each) message.posted = nullptr;
    }
    if (error_) continue;
    if (over()) {
      fail(Errc::kPeerLost, "the sender closed the connection");
    } else {
      fail(Errc::kAborted, "a receive was given up before it was finished");
    }
  }
}

void ReceiverCore::close() {
  {
    const Lock lock(mutex_);
    closing_ = true;
    close_by_ = Clock::now() + kReceiverCloseTime;
    for (auto& [number, rail] : rails_) {
      if (rail->welcomed) rail->say(Kind::kSnapshot, {}, snapshot());
    }
    if (!error_) tell_all(Kind::kGoodbye, {}, {});
    log::info(log::kNet, "rails: a receiving connection was closed: {}", text_of(report_now()));
  }
  context_.keeper->wake();
}

std::string ReceiverCore::describe() {
  const Lock lock(mutex_);
  if (error_) return error_->what();
  return fmt::format("rails: {} receives not yet finished, {} messages under way; {}", waiting_,
                     messages_.size(), text_of(report_now()));
}

std::vector<RailReport> ReceiverCore::report() {
  const Lock lock(mutex_);
  return report_now();
}

std::vector<RailReport> ReceiverCore::report_now() const {
  std::vector<RailReport> reports;
  for (const auto& [number, past] : history_) {
    RailReport report;
    report.name = past.name;
    report.why = past.why;
    report.losses = past.losses;
    report.bytes = past.bytes;
    report.again = past.again;
    const auto found = rails_.find(number);
    if (found != rails_.end()) {
      report.up = found->second->welcomed;
      report.bytes += found->second->bytes;
      report.again += found->second->again;
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

// ---- the keeper's calls --------------------------------------------------------------------

Tended::Tending ReceiverCore::tend(Clock::time_point now) {
  const Lock lock(mutex_);
  if (closing_) {
    bool said = true;
    for (auto& [number, rail] : rails_) {
      if (!rail->welcomed) continue;
      try {
        said = rail->flush() && said;
      } catch (const Error&) {  // then it says nothing more
        continue;
      }
    }
    if (!said && now < close_by_) return Tending::kClosing;
    rails_.clear();
    messages_.clear();
    return Tending::kOver;
  }
  const bool driven =
      (now - Clock::time_point(Clock::duration(driven_at_.load()))) < milliseconds(5);
  const bool making =
      std::ranges::any_of(rails_, [](const auto& entry) { return !entry.second->welcomed; });
  if (!driven || making) progress(now);
  return making && !error_ ? Tending::kBusy : Tending::kIdle;
}

void ReceiverCore::link_changed(const std::string& name, bool up) {
  if (up) return;  // the sender makes it again
  const Lock lock(mutex_);
  if (closing_ || error_) return;
  std::vector<std::uint32_t> lost;
  for (const auto& [number, rail] : rails_) {
    if (rail->device().properties.name == name) lost.push_back(number);
  }
  for (const std::uint32_t number : lost) {
    lose(number, fmt::format("the network interface {} is down", name), Clock::now());
  }
  progress(Clock::now());
}

// ---- rails ---------------------------------------------------------------------------------

void ReceiverCore::progress(Clock::time_point now) {
  driven_at_ = now.time_since_epoch().count();
  std::vector<std::pair<std::uint32_t, std::string>> lost;
  for (auto& [number, rail] : rails_) {
    if (error_) break;
    try {
      step(*rail, now);
    } catch (const Error& error) {
      lost.emplace_back(number, error.what());
    }
  }
  for (const auto& [number, why] : lost) lose(number, why, now);
  if (!error_) say_snapshots();
  lost.clear();
  for (auto& [number, rail] : rails_) {
    try {
      if (rail->unsaid() > 0) (void)rail->flush();
    } catch (const Error& error) {  // it still brings messages, of which the sender never hears
      lost.emplace_back(number, error.what());
    }
  }
  for (const auto& [number, why] : lost) lose(number, why, now);
  if (!rails_.empty()) {
    last_up_ = now;
  } else if (!error_) {
    const Clock::duration limit =
        ever_up_ ? context_.loss_time + kLossMargin : Clock::duration(kFirstArrivalTime);
    if (now - last_up_ > limit) {
      fail(Errc::kPeerLost, fmt::format("no rail is left: {}", text_of(report_now())));
    }
  }
}

void ReceiverCore::step(ArrivingRail& rail, Clock::time_point now) {
  if (!rail.welcomed) {
    if (!rail.answer(backs_[rail.number])) {
      if (now - rail.since > kTryTime) {
        throw Error(Errc::kTimeout, "the connection back to the sender is not there after {} s",
                    kTryTime.count());
      }
      return;
    }
    rail.welcomed = true;
    ever_up_ = true;
    rail.say(Kind::kWelcome, {}, devices_);
  }
  while (const std::optional<ArrivingRail::Came> came = rail.next()) {
    take(rail, came->head, came->following);
    if (error_) return;
    rail.release();
  }
}

void ReceiverCore::lose(std::uint32_t number, const std::string& why, Clock::time_point now) {
  const auto found = rails_.find(number);
  if (found == rails_.end()) return;
  History& past = history_[number];
  const ArrivingRail& rail = *found->second;
  past.bytes += rail.bytes;
  past.again += rail.again;
  past.why = why;
  if (rail.welcomed) ++past.losses;
  if (!end_ && !error_) {
    log::info(log::kNet, "rails: {} brings nothing more: {}", rail.name, why);
  }
  const Lost lost{number, rail.incarnation, why};
  rails_.erase(found);
  last_up_ = now;
  tell_all(Kind::kLost, {}, encode(lost));
}

void ReceiverCore::tell_all(Kind kind, Head head, std::span<const std::byte> following) {
  for (auto& [number, rail] : rails_) {
    if (!rail->welcomed) continue;
    try {
      rail->say(kind, head, following);
      (void)rail->flush();
    } catch (const Error&) {  // the others tell
    }
  }
}

std::vector<std::byte> ReceiverCore::snapshot() const {
  Snapshot all;
  all.credits = credits_;
  for (const auto& [number, rail] : rails_) {
    all.rails.push_back({number, rail->incarnation, rail->count});
  }
  for (const auto& [number, message] : messages_) {
    if (message.posted != nullptr && message.asks) all.granted.push_back(number);
  }
  return encode(all);
}

void ReceiverCore::say_snapshots() {
  std::vector<std::byte> words;
  const bool credits = credits_ - credits_told_ >= kTellCredits;
  for (auto& [number, rail] : rails_) {
    if (!rail->welcomed || rail->unsaid() > 2) continue;
    if (!rail->owes && !credits && rail->count - rail->told < kTellEvery) continue;
    if (words.empty()) words = snapshot();
    rail->say(Kind::kSnapshot, {}, words);
    rail->owes = false;
    rail->told = rail->count;
    credits_told_ = credits_;
  }
}

// A grant, by the first rail that can.
void ReceiverCore::ask_soon() {
  for (auto& [number, rail] : rails_) {
    if (rail->welcomed) rail->owes = true;
  }
}

// ---- messages ------------------------------------------------------------------------------

void ReceiverCore::take(ArrivingRail& rail, const Head& head,
                        std::span<const std::byte> following) {
  switch (head.kind) {
    case Kind::kHello: rail.owes = true; return;
    case Kind::kProbe: rail.owes = true; return;
    case Kind::kFill: rail.owes = true; return;
    case Kind::kPattern: {
      std::vector<std::byte> expected(following.size());
      messaging::fill_pattern(expected, head.message);
      if (!std::ranges::equal(expected, following)) {
        throw Error(Errc::kPeerLost, "a pattern of {} bytes came wrong", following.size());
      }
      rail.owes = true;
      return;
    }
    case Kind::kIntro:
    case Kind::kPiece: take_message(rail, head, following); return;
    case Kind::kLost: {
      // The sender closed that rail, of which this end may see nothing.
      const std::optional<Lost> lost = decode_lost(following);
      if (!lost) return;
      const auto found = rails_.find(lost->rail);
      if (found == rails_.end() || found->second->incarnation != lost->incarnation ||
          found->second.get() == &rail) {
        return;
      }
      lose(lost->rail, "the sender lost it: " + lost->why, Clock::now());
      return;
    }
    case Kind::kBroken:
      fail(Errc::kPeerLost,
           std::string(reinterpret_cast<const char*>(following.data()), following.size()));
      return;
    case Kind::kGoodbye:
      end_ = head.message;
      rail.owes = true;
      return;
    default: throw Error(Errc::kPeerLost, "{}", "an unexpected message came over it");
  }
}

void ReceiverCore::take_message(ArrivingRail& rail, const Head& head,
                                std::span<const std::byte> following) {
  const bool intro = head.kind == Kind::kIntro;
  const std::uint64_t pieces =
      std::max<std::uint64_t>(1, (head.bytes + kPieceBytes - 1) / kPieceBytes);
  const std::uint64_t index = head.offset / kPieceBytes;
  if (head.bytes > kMaxMessageBytes ||
      head.eager > std::min<std::uint64_t>(head.bytes, kEagerBytes) ||
      head.offset % kPieceBytes != 0 || index >= pieces ||
      (!intro &&
       head.following != std::min<std::uint64_t>(kPieceBytes, head.bytes - head.offset)) ||
      head.message >= next_ + kMostAhead) {
    throw Error(Errc::kPeerLost, "{}", "a malformed piece came over it");
  }
  rail.bytes += following.size();
  auto found = messages_.find(head.message);
  if (found == messages_.end()) {
    if (head.message < next_) {  // finished long ago
      rail.again += following.size();
      rail.owes = true;
      return;
    }
    found = messages_.emplace(head.message, Inbound{}).first;
    Inbound& message = found->second;
    message.tag = head.tag;
    message.bytes = head.bytes;
    message.eager = head.eager;
    message.asks = intro || head.eager < head.bytes;
    message.pieces = pieces;
    message.have.resize((pieces + 63) / 64);
  }
  Inbound& message = found->second;
  if (message.bytes != head.bytes || message.tag != head.tag) {
    throw Error(Errc::kPeerLost, "{}", "a piece of another message came over it");
  }
  if (following.size() > kBatchedBytes || intro) rail.owes = true;
  if (!intro) {
    std::uint64_t& bits = message.have[index / 64];
    const std::uint64_t bit = std::uint64_t{1} << (index % 64);
    if ((bits & bit) != 0) {
      rail.again += following.size();
    } else {
      if (message.posted != nullptr) {
        const ReceiveBuffer& buffer = message.posted->buffer;
        copy_to_receive(static_cast<std::byte*>(buffer.data) + head.offset, following.data(),
                        following.size(), buffer.bytes);
      } else {
        if (head.offset + following.size() > message.eager) {
          throw Error(Errc::kPeerLost, "{}", "a piece came over it that was not asked for");
        }
        if (message.held == nullptr && message.eager > 0) {
          message.held = std::make_unique_for_overwrite<std::byte[]>(message.eager);
        }
        if (!following.empty()) {
          std::memcpy(message.held.get() + head.offset, following.data(), following.size());
        }
      }
      bits |= bit;
      ++message.arrived;
    }
  }
  if (head.message == next_) {
    introduce();
  } else if (message.posted != nullptr && message.whole()) {
    finish(head.message, message);
  }
}

// Matches messages in their turn.
void ReceiverCore::introduce() {
  while (!error_) {
    const auto found = messages_.find(next_);
    if (found == messages_.end()) return;
    ++next_;
    Inbound& message = found->second;
    const auto wanted = std::ranges::find_if(
        posted_, [&](const Posted* each) { return each->buffer.tag == message.tag; });
    if (wanted == posted_.end()) continue;
    Posted& posted = **wanted;
    posted_.erase(wanted);
    match(found->first, message, posted);
  }
}

void ReceiverCore::match(std::uint64_t number, Inbound& message, Posted& posted) {
  if (message.bytes > posted.buffer.bytes) {
    Head head;
    head.bytes = message.bytes;
    head.offset = posted.buffer.bytes;
    tell_all(Kind::kBroken, head, {});
    fail(Errc::kInvalidUsage, messaging::too_long(message.bytes, message.tag, posted.buffer.bytes));
    return;
  }
  posted.matched = true;
  posted.bytes = message.bytes;
  message.posted = &posted;
  // What of it has come.
  for (std::uint64_t piece = 0; piece * kPieceBytes < message.eager; ++piece) {
    if ((message.have[piece / 64] >> (piece % 64) & 1U) == 0) continue;
    const std::size_t offset = piece * kPieceBytes;
    copy_to_receive(
        static_cast<std::byte*>(posted.buffer.data) + offset, message.held.get() + offset,
        std::min<std::size_t>(kPieceBytes, message.eager - offset), posted.buffer.bytes);
  }
  message.held.reset();
  // An introduction alone was not paid for.
  if (message.eager > 0 || !message.asks) {
    credits_ += kMessageCredits + message.eager;
  }
  if (message.whole()) {
    finish(number, message);
  } else if (message.asks) {
    ask_soon();
  }
}

void ReceiverCore::finish(std::uint64_t number, Inbound& message) {
  message.posted->finished = true;
  --waiting_;
  messages_.erase(number);
}

// ---- the end -------------------------------------------------------------------------------

bool ReceiverCore::over() const { return error_ || (end_ && next_ >= *end_); }

void ReceiverCore::throw_over() const {
  if (error_) throw Error(*error_);
  throw Error(Errc::kPeerLost, "{}", "rails: the sender closed the connection");
}

bool ReceiverCore::held_for(std::span<const Posted> posted) const {
  for (const Posted& each : posted) {
    const std::uint32_t tag = each.buffer.tag;
    const auto wanted =
        std::ranges::count_if(posted, [&](const Posted& other) { return other.buffer.tag == tag; });
    const auto whole =
        std::ranges::count_if(messages_, [tag, introduced = next_](const auto& entry) {
          return entry.first < introduced && entry.second.posted == nullptr &&
                 entry.second.whole() && entry.second.tag == tag;
        });
    if (whole < wanted) return false;
  }
  return true;
}

void ReceiverCore::fail(Errc code, const std::string& why) {
  if (error_) return;
  error_ = Error(code, "rails: {}", why);
  if (code == Errc::kAborted) {
    // What has arrived first, on each rail: the sends of it are finished.
    tell_all(Kind::kSnapshot, {}, snapshot());
    tell_all(Kind::kBroken, {}, std::as_bytes(std::span("the receiver gave a receive up")));
  }
}

}  // namespace ropewalk::transport::rails
