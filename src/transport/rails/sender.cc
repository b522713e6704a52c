#include "transport/rails/sender.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/log.h"
#include "core/random.h"
#include "transport/messaging/verification.h"
#include "transport/simple_requests.h"

namespace ropewalk::transport::rails {
namespace {

using std::chrono::milliseconds;

// Messages up to this size go over the fastest rail alone: others could not bring them sooner.
constexpr std::size_t kShortBytes = 16 << 10;
// Those up to this size are copied, so that their sends are finished without the receiver.
constexpr std::size_t kCopiedBytes = 4 << 10;
// Bytes outstanding on a rail: as many as it carries in this time, within bounds. Less leaves a
// rail idle when a thread is scheduled late; more makes what is lost with a rail longer to repeat.
constexpr double kWindowSeconds = 0.010;
constexpr std::size_t kLeastWindow = 3 * kPieceBytes;
constexpr std::size_t kMostWindow = 16 * kPieceBytes;
// Providers take so many requests at least.
constexpr std::size_t kMostFlying = 30;
constexpr std::size_t kBackSlots = 8;

constexpr auto kProbePeriod = milliseconds(75);
constexpr auto kSilence = milliseconds(250);
constexpr std::uint64_t kMissedProbes = 3;
constexpr auto kSilenceOfAll = std::chrono::seconds(1);
// A send that has arrived finishes within this, or its rail is lost.
constexpr auto kKeepTime = std::chrono::seconds(1);
// On a rail that answers none.
constexpr std::uint64_t kMostUnanswered = 6;

constexpr auto kFirstBackoff = milliseconds(50);
constexpr auto kLongestBackoff = std::chrono::seconds(5);
// A rail that was up for so long may be tried at once when it is lost.
constexpr auto kStable = std::chrono::seconds(2);
// Nothing was ever up, and nobody has refused either.
constexpr auto kFirstUpTime = std::chrono::seconds(10);

constexpr auto kRateSpan = milliseconds(5);
constexpr auto kForgetSpan = milliseconds(100);
constexpr int kSamplesToJudge = 4;
constexpr double kLeastShare = 0.25;
constexpr double kMargin = 0.85;
constexpr auto kMeasureAgain = std::chrono::seconds(2);
constexpr std::size_t kFillPieces = 4;

// After its object is gone, a connection waits so long for what it sent to arrive.
constexpr auto kCloseTime = std::chrono::seconds(5);

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

std::size_t pieces_of(std::size_t bytes) {
  return std::max<std::size_t>(1, (bytes + kPieceBytes - 1) / kPieceBytes);
}

std::size_t window_of(double rate) {
  if (rate <= 0) return kLeastWindow;
  const auto wanted = static_cast<std::size_t>(rate * kWindowSeconds);
  return std::clamp(wanted, kLeastWindow, kMostWindow);
}

const std::byte* fill_bytes() {
  static const std::vector<std::byte> zeros(kPieceBytes);
  return zeros.data();
}

bool is_network_interface(const Device& device, const std::string& name) {
  return device.properties.name == name;
}

class SendRequest final : public Request {
 public:
  SendRequest(std::shared_ptr<SenderCore> core, std::shared_ptr<Outbound> message)
      : core_(std::move(core)),
        message_(std::move(message)),
        sizes_{message_->bytes},
        finished_(message_->copy != nullptr) {}
  ~SendRequest() override { core_->drop(message_); }
  SendRequest(const SendRequest&) = delete;
  SendRequest& operator=(const SendRequest&) = delete;
  std::optional<std::size_t> test() override {
    if (!finished_) finished_ = core_->finished(*message_);
    if (!finished_) return std::nullopt;
    return sizes_[0];
  }
  [[nodiscard]] std::span<const std::size_t> sizes() const override { return sizes_; }

 private:
  std::shared_ptr<SenderCore> core_;
  std::shared_ptr<Outbound> message_;
  std::array<std::size_t, 1> sizes_;
  bool finished_;
};

}  // namespace

// ---- the connection's object ---------------------------------------------------------------

std::unique_ptr<Registration> RailsSender::register_memory(void* data, std::size_t bytes,
                                                           MemoryKind kind) {
  return HostRegistration::make(data, bytes, kind);
}

std::unique_ptr<Request> RailsSender::send(const void* data, std::size_t bytes, std::uint32_t tag,
                                           Registration* /*registration*/) {
  check_buffer(data, bytes, kMaxMessageBytes);
  std::shared_ptr<Outbound> message = core_->start(data, bytes, tag);
  if (message == nullptr) return nullptr;
  return std::make_unique<SendRequest>(core_, std::move(message));
}

// ---- what is asked of the core -------------------------------------------------------------

SenderCore::SenderCore(const Context& context, std::vector<Offer> offers)
    : context_(context), begun_at_(Clock::now()) {
  fill_random(identity_);
  const Lock lock(mutex_);
  last_up_ = begun_at_;
  peers_.resize(kMostDevices);
  std::vector<Pairable> own;
  for (const Device& device : context_.devices) {
    own.push_back(
        {device.provider, fabric_code(device.properties.fabric), device.properties.speed_mbps});
  }
  std::vector<Pairable> theirs;
  for (const Offer& offer : offers) {
    DeviceFacts& facts = peers_[offer.device];
    facts.provider = offer.provider;
    facts.fabric = offer.fabric;
    facts.handle = offer.handle;
    theirs.push_back({offer.provider, offer.fabric, 0});
  }
  std::vector<PairedDevices> pairs = pair_up(own, theirs, kMostRails, true);
  for (PairedDevices& pair : pairs) {
    pair.peers = offers[static_cast<std::size_t>(pair.peers)].device;
  }
  if (pairs.empty()) {
    throw Error(Errc::kPeerLost, "{}",
                "rails: the listener's devices are of no provider that this end has (RAILS)");
  }
  add_rails(pairs);
}

SenderCore::~SenderCore() = default;

bool SenderCore::ready() {
  const Lock lock(mutex_);
  throw_if_failed();
  progress(Clock::now());
  throw_if_failed();
  return ever_up_;
}

std::shared_ptr<Outbound> SenderCore::start(const void* data, std::size_t bytes,
                                            std::uint32_t tag) {
  const Lock lock(mutex_);
  throw_if_failed();
  const std::uint64_t credits_left = kCredits - (credits_used_ - credits_returned_);
  const std::size_t eager = std::min(bytes, kEagerBytes);
  const bool has_credits = credits_left >= kMessageCredits + eager;
  const bool copied = has_credits && bytes <= kCopiedBytes;
  if (!ever_up_ || (!copied && active_ >= kMaxRequests) || !has_credits) {
    progress(Clock::now());
    throw_if_failed();
    if (!ever_up_ || (!copied && active_ >= kMaxRequests)) return nullptr;
  }
  auto message = std::make_shared<Outbound>();
  message->number = number_++;
  message->tag = tag;
  message->data = static_cast<const std::byte*>(data);
  message->bytes = bytes;
  message->pieces = pieces_of(bytes);
  if (has_credits) {
    message->eager = eager;
    credits_used_ += kMessageCredits + eager;
  } else {
    message->introduced_only = true;
  }
  if (copied) {
    message->copy = std::make_unique_for_overwrite<std::byte[]>(std::max<std::size_t>(1, bytes));
    if (bytes > 0) std::memcpy(message->copy.get(), data, bytes);
    message->data = message->copy.get();
  } else {
    ++active_;
  }
  queued_bytes_ += bytes;
  pending_.push_back(message);
  undelivered_.push_back(message);
  progress(Clock::now());
  return message;
}

bool SenderCore::finished(const Outbound& message) {
  const Lock lock(mutex_);
  const auto done = [&] { return message.delivered() && message.lent == 0; };
  if (done()) return true;
  progress(Clock::now());
  if (done()) return true;
  throw_if_failed();
  return false;
}

void SenderCore::drop(const std::shared_ptr<Outbound>& message) {
  if (message->copy != nullptr) return;
  const Lock lock(mutex_);
  --active_;
  if (message->delivered() && message->lent == 0) return;
  fail(Errc::kAborted, "a send was given up before it was finished");
  for (Rail& rail : rails_) {
    // What the providers still read of it is taken from them.
    if (std::ranges::any_of(rail.flying, [&](const Flying& each) {
          return each.message == message && each.request != nullptr;
        })) {
      rail.flying.clear();
      rail.forth.reset();
      rail.back_posted.clear();
      rail.back.reset();
      rail.state = State::kWaiting;
    }
  }
}

void SenderCore::close() {
  {
    const Lock lock(mutex_);
    closing_ = true;
    close_by_ = Clock::now() + kCloseTime;
    progress(Clock::now());
    log::info(log::kNet, "rails: a sending connection was closed: {}", text_of(report_now()));
  }
  context_.keeper->wake();
}

std::string SenderCore::describe() {
  const Lock lock(mutex_);
  if (error_) return error_->what();
  std::size_t open = 0;
  for (const auto& message : undelivered_) open += message->delivered() ? 0 : 1;
  return fmt::format("rails: {} of {} messages not yet arrived; {}", open, number_, rails_text());
}

std::vector<RailReport> SenderCore::report() {
  const Lock lock(mutex_);
  return report_now();
}

std::vector<RailReport> SenderCore::report_now() const {
  std::vector<RailReport> reports;
  for (const Rail& rail : rails_) {
    reports.push_back({rail.name, rail.state == State::kUp, rail.standby, rail.why,
                       rail.total_bytes, rail.total_again, rail.losses, rail.rate});
  }
  return reports;
}

std::string SenderCore::rails_text() const { return text_of(report_now()); }

void SenderCore::throw_if_failed() const {
  if (error_) throw Error(*error_);
}

// ---- the keeper's calls --------------------------------------------------------------------

Tended::Tending SenderCore::tend(Clock::time_point now) {
  const Lock lock(mutex_);
  const bool driven =
      (now - Clock::time_point(Clock::duration(driven_at_.load()))) < milliseconds(5);
  if (!closing_ && driven && ever_up_) return Tending::kIdle;
  if (!error_) progress(now);
  if (closing_) {
    while (!undelivered_.empty() && undelivered_.front()->delivered()) undelivered_.pop_front();
    if (!error_ && undelivered_.empty() && !goodbye_said_) {
      Head head;
      head.message = number_;
      tell_all(Kind::kGoodbye, {}, head);
      goodbye_said_ = true;
    }
    if (error_) {
      for (Rail& rail : rails_) {
        if (rail.state != State::kUp) continue;
        try {
          reap(rail, now);
        } catch (const Error&) {
          rail.flying.clear();
          rail.tested = 0;
        }
      }
    }
    // The goodbye is a message of a rail: counted like others, if there is anybody to count.
    const bool counts = !error_;
    const bool flying = std::ranges::any_of(rails_, [&](const Rail& rail) {
      return rail.state == State::kUp && std::ranges::any_of(rail.flying, [&](const Flying& each) {
               const bool last = each.kind == Kind::kGoodbye || each.kind == Kind::kBroken;
               return last && (each.request != nullptr || (counts && !each.counted));
             });
    });
    if ((goodbye_said_ || error_) && (!flying || now > close_by_)) {
      rails_.clear();
      return Tending::kOver;
    }
    if (now > close_by_) {
      log::warn("rails: a connection was closed with {} messages that have not arrived",
                undelivered_.size());
      rails_.clear();
      return Tending::kOver;
    }
    return Tending::kClosing;
  }
  const bool making = std::ranges::any_of(rails_, [](const Rail& rail) {
    return rail.state == State::kConnecting || rail.state == State::kGreeting ||
           rail.state == State::kVerifying;
  });
  return making && !error_ ? Tending::kBusy : Tending::kIdle;
}

void SenderCore::link_changed(const std::string& name, bool up) {
  const Lock lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (error_) return;
  for (Rail& rail : rails_) {
    if (!is_network_interface(context_.devices[static_cast<std::size_t>(rail.pair.own)], name)) {
      continue;
    }
    if (up) {
      rail.backoff = {};
      if (rail.state == State::kWaiting) rail.retry_at = now;
    } else if (rail.state != State::kWaiting) {
      lose(rail, Error(Errc::kPeerLost, "the network interface {} is down", name), now);
    }
  }
  progress(now);
}

// ---- making rails --------------------------------------------------------------------------

void SenderCore::add_rails(std::span<const PairedDevices> pairs) {
  for (const PairedDevices& pair : pairs) {
    const bool there =
        std::ranges::any_of(rails_, [&](const Rail& rail) { return rail.pair == pair; });
    if (there || rails_.size() == kMostRails) continue;
    Rail& rail = rails_.emplace_back();
    rail.number = static_cast<std::uint32_t>(rails_.size() - 1);
    rail.pair = pair;
    rail.name = context_.devices[static_cast<std::size_t>(pair.own)].name();
    rail.retry_at = Clock::now();
  }
}

void SenderCore::begin(Rail& rail, Clock::time_point now) {
  const Device& own = context_.devices[static_cast<std::size_t>(rail.pair.own)];
  rail.state = State::kConnecting;
  rail.since = now;
  ++rail.incarnation;
  rail.greeted = false;
  rail.sent = rail.counted = 0;
  rail.tested = 0;
  rail.outstanding = 0;
  rail.kept = 0;
  rail.listener = own.transport->listen(own.number);
  rail.connector =
      own.transport->connect(own.number, peers_[static_cast<std::size_t>(rail.pair.peers)].handle);
}

void SenderCore::greet(Rail& rail, Clock::time_point now) {
  if (!rail.forth->ready()) return;
  if (!rail.greeted) {
    Hello hello;
    hello.connection = identity_;
    hello.rail = rail.number;
    hello.incarnation = rail.incarnation;
    hello.back = rail.listener->handle();
    rail.greeted = send_control(rail, Kind::kHello, encode(hello), {}, now);
    if (!rail.greeted) return;
  }
  if (rail.back == nullptr) {
    rail.back = rail.listener->accept();
    if (rail.back == nullptr) return;
    rail.back_memory.resize(kBackSlots * (kHeadBytes + kMostControlBytes));
    rail.back_posted.clear();
    for (std::size_t slot = 0; slot < kBackSlots; ++slot)
      rail.back_posted.emplace_back(slot, nullptr);
  }
}

void SenderCore::come_up(Rail& rail, Clock::time_point now) {
  rail.state = State::kUp;
  rail.since = now;
  rail.listener.reset();
  rail.answered = probes_;
  rail.heard = now;
  rail.standby = false;
  rail.samples = 0;
  rail.span_bytes = 0;
  rail.span_busy = {};
  rail.was_full = false;
  if (rail.ever_up) {
    log::warn("rails: {} is back and verified", rail.name);
  } else {
    log::info(log::kNet, "rails: {} is used", rail.name);
  }
  rail.ever_up = true;
  ever_up_ = true;
  last_up_ = now;
}

void SenderCore::step(Rail& rail, Clock::time_point now) {
  if (rail.state == State::kWaiting) {
    if (now < rail.retry_at || (closing_ && undelivered_.empty())) return;
    begin(rail, now);
  }
  if (rail.state == State::kConnecting) {
    rail.forth = rail.connector->poll();
    if (rail.forth != nullptr) {
      rail.connector.reset();
      rail.state = State::kGreeting;
      rail.since = now;
    }
  }
  if (rail.state == State::kGreeting) greet(rail, now);
  if (rail.state >= State::kGreeting) {
    if (rail.back != nullptr) read_back(rail, now);
    reap(rail, now);
    if (rail.state == State::kUp && rail.kept != 0 && now - rail.kept_since > kKeepTime) {
      throw Error(Errc::kPeerLost, "a message has arrived, and its send does not finish for {} s",
                  kKeepTime.count());
    }
  }
  const auto limit = rail.state == State::kConnecting ? kConnectTime : kTryTime;
  if (rail.state != State::kUp && now - rail.since > limit) {
    throw Error(Errc::kTimeout, "no answer in {} s", limit.count());
  }
}

void SenderCore::read_back(Rail& rail, Clock::time_point now) {
  if (!rail.back->ready()) return;
  constexpr std::size_t kControlSlotBytes = kHeadBytes + kMostControlBytes;
  for (auto& [slot, request] : rail.back_posted) {
    if (request != nullptr) continue;
    const ReceiveBuffer buffer{rail.back_memory.data() + slot * kControlSlotBytes,
                               kControlSlotBytes, kTag, nullptr};
    request = rail.back->receive({&buffer, 1});
    if (request == nullptr) break;
  }
  while (!rail.back_posted.empty() && rail.back_posted.front().second != nullptr) {
    auto& [slot, request] = rail.back_posted.front();
    const std::optional<std::size_t> bytes = request->test();
    if (!bytes) return;
    const std::span<const std::byte> message(rail.back_memory.data() + slot * kControlSlotBytes,
                                             *bytes);
    const std::optional<Head> head = open_head(message);
    if (!head) throw Error(Errc::kPeerLost, "{}", "a message was changed in transit");
    rail.heard = now;
    take(rail, *head, message.subspan(kHeadBytes), now);
    if (error_) return;
    const std::size_t again = slot;
    rail.back_posted.pop_front();
    const ReceiveBuffer buffer{rail.back_memory.data() + again * kControlSlotBytes,
                               kControlSlotBytes, kTag, nullptr};
    rail.back_posted.emplace_back(again, rail.back->receive({&buffer, 1}));
  }
}

void SenderCore::take(Rail& rail, const Head& head, std::span<const std::byte> following,
                      Clock::time_point now) {
  switch (head.kind) {
    case Kind::kWelcome: {
      std::optional<std::vector<DeviceFacts>> devices = decode_devices(following);
      if (!devices) throw Error(Errc::kPeerLost, "{}", "a malformed list of devices came over it");
      if (!std::exchange(knows_peers_, true)) {
        std::vector<Pairable> own;
        std::vector<Pairable> theirs;
        for (const Device& device : context_.devices) {
          own.push_back({device.provider, fabric_code(device.properties.fabric),
                         device.properties.speed_mbps});
        }
        for (const DeviceFacts& device : *devices) {
          theirs.push_back({device.provider, device.fabric, device.speed_mbps});
        }
        peers_ = std::move(*devices);
        peers_.resize(kMostDevices);
        add_rails(pair_up(own, theirs, kMostRails, false));
      }
      if (rail.state != State::kGreeting) return;
      rail.state = State::kVerifying;
      if (context_.verifies) {
        // Of each kind of message that the provider may have.
        for (const std::size_t bytes : {std::size_t{64}, kPieceBytes}) {
          std::vector<std::byte> pattern(bytes);
          Head pattern_head;
          pattern_head.message = rail.incarnation * 77 + bytes;
          messaging::fill_pattern(pattern, pattern_head.message);
          if (!send_control(rail, Kind::kPattern, pattern, pattern_head, now)) {
            throw Error(Errc::kPeerLost, "{}", "it takes no pattern");
          }
        }
      }
      return;
    }
    case Kind::kSnapshot: {
      const std::optional<Snapshot> snapshot = decode_snapshot(following);
      if (!snapshot) throw Error(Errc::kPeerLost, "{}", "a malformed record came over it");
      credits_returned_ = std::max(credits_returned_, snapshot->credits);
      for (const std::uint64_t number : snapshot->granted) {
        for (const auto& message : pending_) {
          if (message->number == number) message->granted = true;
        }
      }
      for (const Arrived& arrived : snapshot->rails) {
        if (arrived.rail >= rails_.size()) continue;
        Rail& of = rails_[arrived.rail];
        if (of.incarnation != arrived.incarnation || of.state < State::kGreeting) continue;
        count(of, arrived.count, now);
      }
      if (rail.state == State::kVerifying && rail.counted == rail.sent) come_up(rail, now);
      return;
    }
    case Kind::kLost: {
      const std::optional<Lost> lost = decode_lost(following);
      if (!lost || lost->rail >= rails_.size()) return;
      Rail& of = rails_[lost->rail];
      if (of.incarnation != lost->incarnation || of.state == State::kWaiting) return;
      const std::string why = "the receiver lost it: " + lost->why;
      if (&of == &rail) throw Error(Errc::kPeerLost, "{}", why);
      lose(of, Error(Errc::kPeerLost, why), now);
      return;
    }
    case Kind::kBroken:
      fail(Errc::kPeerLost,
           head.bytes != 0
               ? fmt::format("a message of {} bytes was sent for a receive of {} bytes", head.bytes,
                             head.offset)
               : std::string(reinterpret_cast<const char*>(following.data()), following.size()));
      return;
    case Kind::kGoodbye: fail(Errc::kPeerLost, "the receiver closed the connection"); return;
    default: throw Error(Errc::kPeerLost, "{}", "an unexpected message came over it");
  }
}

// ---- the record of arrival -----------------------------------------------------------------

void SenderCore::count(Rail& rail, std::uint64_t until, Clock::time_point now) {
  // Entries before the first uncounted one have been counted and wait for their provider.
  if (until > rail.sent) throw Error(Errc::kPeerLost, "{}", "it counted more than was sent");
  if (until <= rail.counted) return;
  rail.heard = now;
  std::size_t bytes = 0;
  const std::size_t first = rail.flying.size() - static_cast<std::size_t>(rail.sent - rail.counted);
  for (std::size_t i = first; rail.counted < until; ++i, ++rail.counted) {
    Flying& each = rail.flying[i];
    each.counted = true;
    if (each.kind == Kind::kProbe) rail.answered = std::max(rail.answered, each.probe);
    if (each.kind == Kind::kPiece || each.kind == Kind::kFill) bytes += each.bytes;
    if (each.kind == Kind::kPiece) {
      ++each.message->arrived;
      rail.total_bytes += each.bytes;
      if (each.again) rail.total_again += each.bytes;
    }
  }
  rail.outstanding -= bytes;
  if (bytes > 0) measure(rail, bytes, now);
  while (!undelivered_.empty() && undelivered_.front()->delivered()) undelivered_.pop_front();
}

void SenderCore::reap(Rail& rail, Clock::time_point now) {
  while (rail.tested < rail.flying.size()) {
    Flying& each = rail.flying[rail.tested];
    if (!each.request->test()) break;
    each.request.reset();
    if (each.lends) {
      --each.message->lent;
      each.lends = false;
    }
    each.staged.reset();
    ++rail.tested;
  }
  while (rail.tested > 0 && rail.flying.front().counted) {
    rail.flying.pop_front();
    --rail.tested;
  }
  const bool keeps = rail.tested < rail.flying.size() && rail.flying[rail.tested].counted;
  const std::uint64_t kept =
      keeps ? rail.sent - rail.flying.size() + rail.tested + 1 : std::uint64_t{0};
  if (kept != std::exchange(rail.kept, kept)) rail.kept_since = now;
}

void SenderCore::measure(Rail& rail, std::size_t bytes, Clock::time_point now) {
  rail.span_bytes += bytes;
  const Clock::duration busy = rail.span_busy + (now - rail.busy_since);
  const bool enough =
      rail.span_bytes >= kFillPieces * kPieceBytes && (busy >= kRateSpan || rail.standby);
  if (enough && (rail.was_full || rail.standby)) {
    const double rate = static_cast<double>(rail.span_bytes) / seconds(busy);
    const double weight = rail.samples == 0 ? 1 : rail.standby ? 0.5 : 0.3;
    rail.rate += weight * (rate - rail.rate);
    ++rail.samples;
    judge_rates(now);
  }
  if (enough || (busy > kForgetSpan && !rail.was_full && !rail.standby)) {
    rail.span_bytes = 0;
    rail.span_busy = {};
    rail.was_full = false;
  } else {
    rail.span_busy = busy;
  }
  rail.busy_since = now;
}

void SenderCore::judge_rates(Clock::time_point now) {
  double best = 0;
  for (const Rail& rail : rails_) {
    if (rail.state == State::kUp && rail.samples >= kSamplesToJudge) {
      best = std::max(best, rail.rate);
    }
  }
  for (Rail& rail : rails_) {
    if (rail.state != State::kUp || rail.samples < kSamplesToJudge) continue;
    if (!rail.standby && rail.rate < kLeastShare * kMargin * best) {
      rail.standby = true;
      rail.why = fmt::format("slower than a quarter of the fastest: {:.4g} of {:.4g} MB/s",
                             rail.rate / 1e6, best / 1e6);
      rail.measure_at = now + kMeasureAgain;
      log::info(log::kNet, "rails: {} is left out: {}", rail.name, rail.why);
    } else if (rail.standby && rail.rate >= kLeastShare * best) {
      rail.standby = false;
      rail.why.clear();
      log::info(log::kNet, "rails: {} is used again: {:.4g} of {:.4g} MB/s", rail.name,
                rail.rate / 1e6, best / 1e6);
    }
  }
}

// ---- loss ----------------------------------------------------------------------------------

void SenderCore::lose(Rail& rail, const Error& error, Clock::time_point now) {
  const std::string why = error.what();
  const bool was_up = rail.state == State::kUp;
  const bool stable = was_up && now - rail.since >= kStable;
  std::vector<Piece> lost;
  for (Flying& each : rail.flying) {
    if (each.lends) --each.message->lent;
    if (each.counted || each.message == nullptr) continue;
    lost.push_back({each.message, each.offset, each.bytes, each.kind == Kind::kIntro, true});
    queued_bytes_ += each.bytes;
  }
  again_.insert(again_.begin(), lost.begin(), lost.end());
  // From here on no provider reads what was sent over it.
  rail.flying.clear();
  rail.back_posted.clear();
  rail.back.reset();
  rail.forth.reset();
  rail.connector.reset();
  rail.listener.reset();
  rail.tested = 0;
  rail.sent = rail.counted = 0;
  rail.outstanding = 0;
  rail.standby = false;
  rail.state = State::kWaiting;
  rail.since = now;
  if (stable) rail.backoff = {};
  rail.backoff = rail.backoff.count() == 0
                     ? Clock::duration(kFirstBackoff)
                     : std::min<Clock::duration>(2 * rail.backoff, kLongestBackoff);
  rail.retry_at = now + rail.backoff;
  rail.why = why;
  rail.unanswered = error.code() == Errc::kTimeout;
  rail.probe_refused = false;
  if (was_up) {
    ++rail.losses;
    last_up_ = now;
    if (!closing_) {
      log::warn("rails: {} is lost: {}; {} pieces go again over the others", rail.name, why,
                lost.size());
    }
  } else {
    log::info(log::kNet, "rails: {} is not used: {}", rail.name, why);
  }
  for (Rail& other : rails_) {
    if (other.state != State::kUp) continue;
    try {
      if (send_control(other, Kind::kLost, encode(Lost{rail.number, rail.incarnation, why}), {},
                       now)) {
        break;
      }
    } catch (const Error&) {  // its own loss is found when it is next looked at
    }
  }
}

void SenderCore::probe(Clock::time_point now) {
  if (now - probed_at_ < kProbePeriod || !anything_outstanding()) return;
  probed_at_ = now;
  ++probes_;
  for (Rail& rail : rails_) {
    if (rail.state != State::kUp || rail.flying.size() >= kMostFlying + kMostUnanswered) continue;
    const auto unanswered = std::ranges::count_if(
        rail.flying, [](const Flying& each) { return each.kind == Kind::kProbe && !each.counted; });
    if (unanswered >= static_cast<std::ptrdiff_t>(kMostUnanswered)) continue;
    Head head;
    head.message = probes_;
    try {
      rail.probe_refused = !send_control(rail, Kind::kProbe, {}, head, now);
    } catch (const Error& error) {
      lose(rail, error, now);
    }
  }
}

bool SenderCore::anything_outstanding() const {
  // What has arrived may still be with its provider, which waits for an answer.
  return !undelivered_.empty() || !again_.empty() ||
         std::ranges::any_of(rails_, [](const Rail& rail) {
           return rail.state == State::kUp &&
                  (rail.counted < rail.sent || rail.tested < rail.flying.size());
         });
}

void SenderCore::watch(Clock::time_point now) {
  std::uint64_t answered = 0;
  bool any_up = false;
  for (const Rail& rail : rails_) {
    if (rail.state != State::kUp) continue;
    any_up = true;
    answered = std::max(answered, rail.answered);
  }
  if (any_up) {
    last_up_ = now;
    for (Rail& rail : rails_) {
      if (rail.state != State::kUp) continue;
      if (rail.counted == rail.sent && !rail.probe_refused) continue;
      if (rail.answered + kMissedProbes > answered || now - rail.heard < kSilence) continue;
      lose(rail,
           Error(Errc::kPeerLost, "silent for {:.2f} s, while others answer",
                 seconds(now - rail.heard)),
           now);
    }
    make_one_again_if_all_are_silent(now);
    return;
  }
  if (now - last_up_ < context_.loss_time) return;
  if (!ever_up_ && now - begun_at_ < kFirstUpTime) {
    const bool all_refused = std::ranges::all_of(rails_, [](const Rail& rail) {
      return rail.incarnation == 0 || (!rail.why.empty() && !rail.unanswered);
    });
    if (!all_refused) return;
  }
  fail(Errc::kPeerLost, fmt::format("no rail is left: {}", rails_text()));
}

// Either the peer is busy elsewhere, or every rail broke so that this end does not see it: a rail
// that is made again tells. One stays as it is, since a peer that is stopped is not lost.
void SenderCore::make_one_again_if_all_are_silent(Clock::time_point now) {
  Rail* longest = nullptr;
  int up = 0;
  for (Rail& rail : rails_) {
    if (rail.state != State::kUp) continue;
    if (rail.counted == rail.sent || now - rail.heard < kSilenceOfAll) return;
    if (longest == nullptr || rail.heard < longest->heard) longest = &rail;
    ++up;
  }
  if (up < 2) return;
  lose(*longest,
       Error(Errc::kPeerLost, "silent for {:.2f} s, as all are", seconds(now - longest->heard)),
       now);
}

void SenderCore::fail(Errc code, const std::string& why) {
  if (error_) return;
  if (code == Errc::kAborted) {
    tell_all(Kind::kBroken, std::as_bytes(std::span("the sender gave a send up")), {});
  }
  error_ = Error(code, "rails: {}", why);
  pending_.clear();
  again_.clear();
  undelivered_.clear();
}

void SenderCore::tell_all(Kind kind, std::span<const std::byte> following, Head head) {
  for (Rail& rail : rails_) {
    if (rail.state != State::kUp) continue;
    try {
      (void)send_control(rail, kind, following, head, Clock::now());
    } catch (const Error&) {  // the others tell
    }
  }
}

// ---- sending -------------------------------------------------------------------------------

void SenderCore::progress(Clock::time_point now) {
  driven_at_ = now.time_since_epoch().count();
  if (error_) return;
  // By number: a welcome adds rails.
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    Rail& rail = rails_[i];
    try {
      // Sends of what has arrived are finished also when the receiver has ended.
      error_ ? reap(rail, now) : step(rail, now);
    } catch (const Error& error) {
      if (!error_) lose(rail, error, now);
    }
  }
  if (error_) return;
  if (ever_up_) {
    transmit(now);
    probe(now);
  }
  watch(now);
}

std::optional<SenderCore::Piece> SenderCore::next_of(
    const std::shared_ptr<Outbound>& message) const {
  if (message->introduced_only && !message->introduced) return Piece{message, 0, 0, true, false};
  if (message->given == message->pieces) return std::nullopt;
  const std::size_t allowed = message->granted ? message->bytes : message->eager;
  const bool empty = message->bytes == 0 && (message->granted || !message->introduced_only);
  if (message->next >= allowed && !empty) return std::nullopt;
  return Piece{message, message->next, std::min(kPieceBytes, allowed - message->next), false,
               false};
}

void SenderCore::transmit(Clock::time_point now) {
  for (Rail& rail : rails_) {
    rail.refused = false;
    if (rail.state != State::kUp || !rail.standby || now < rail.measure_at) continue;
    if (rail.counted < rail.sent) continue;
    rail.measure_at = now + kMeasureAgain;
    try {
      for (std::size_t i = 0; i < kFillPieces; ++i) {
        Flying flying;
        flying.kind = Kind::kFill;
        flying.bytes = kPieceBytes;
        Head head;
        head.kind = Kind::kFill;
        if (!send(rail, std::move(flying), head, fill_bytes(), kPieceBytes, now)) break;
      }
    } catch (const Error& error) {
      lose(rail, error, now);
    }
  }
  while (!again_.empty()) {
    const Piece piece = again_.front();
    if (!give(piece, now)) break;
    // Unless a rail was lost meanwhile, and put its own before it.
    const auto at = std::ranges::find_if(again_, [&](const Piece& each) {
      return each.message == piece.message && each.offset == piece.offset &&
             each.intro == piece.intro;
    });
    if (at != again_.end()) again_.erase(at);
  }
  for (std::size_t i = 0; i < pending_.size();) {
    const std::shared_ptr<Outbound> message = pending_[i];
    for (std::optional<Piece> piece = next_of(message); piece; piece = next_of(message)) {
      if (!give(*piece, now)) break;
      if (piece->intro) {
        message->introduced = true;
      } else {
        message->next += piece->bytes;
        ++message->given;
      }
    }
    if (message->given == message->pieces) {
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

// The rail that will have delivered the piece first, if it has room.
SenderCore::Rail* SenderCore::choose(const Piece& piece) {
  double best = 0;
  bool any_in_use = false;
  for (const Rail& rail : rails_) {
    if (rail.state != State::kUp) continue;
    any_in_use = any_in_use || !rail.standby;
    best = std::max(best, rail.rate);
  }
  const auto rate_of = [&](const Rail& rail) {
    // One that was not measured yet is taken for as fast as the best.
    return rail.rate > 0 ? rail.rate : best > 0 ? best : 1e9;
  };
  const auto in_use = [&](const Rail& rail) {
    return rail.state == State::kUp && (!rail.standby || !any_in_use);
  };
  const auto has_room = [&](const Rail& rail) {
    return !rail.refused && rail.flying.size() < kMostFlying &&
           (rail.outstanding == 0 || rail.outstanding + piece.bytes <= window_of(rail.rate));
  };
  const auto end_of = [&](const Rail& rail) {
    return static_cast<double>(rail.outstanding + piece.bytes) / rate_of(rail);
  };
  if (piece.message->bytes <= kShortBytes) {
    Rail* fastest = nullptr;
    for (Rail& rail : rails_) {
      if (!in_use(rail) || rail.refused) continue;
      if (fastest == nullptr || rate_of(rail) > rate_of(*fastest)) fastest = &rail;
    }
    return fastest != nullptr && has_room(*fastest) ? fastest : nullptr;
  }
  Rail* chosen = nullptr;
  for (Rail& rail : rails_) {
    if (!in_use(rail)) continue;
    if (!has_room(rail)) {
      rail.was_full = true;
      continue;
    }
    if (chosen == nullptr || end_of(rail) < end_of(*chosen)) chosen = &rail;
  }
  if (chosen == nullptr) return nullptr;
  // Not to one over which it would come after the others have delivered all there is.
  double others = 0;
  auto left = static_cast<double>(queued_bytes_);
  for (const Rail& rail : rails_) {
    if (!in_use(rail) || &rail == chosen || rail.refused) continue;
    others += rate_of(rail);
    left += static_cast<double>(rail.outstanding);
  }
  if (others > 0 && end_of(*chosen) > left / others) return nullptr;
  return chosen;
}

bool SenderCore::give(const Piece& piece, Clock::time_point now) {
  for (;;) {
    Rail* const rail = choose(piece);
    if (rail == nullptr) return false;
    const Outbound& message = *piece.message;
    Head head;
    head.kind = piece.intro ? Kind::kIntro : Kind::kPiece;
    head.tag = message.tag;
    head.message = message.number;
    head.bytes = message.bytes;
    head.offset = piece.offset;
    head.eager = message.eager;
    Flying flying;
    flying.kind = head.kind;
    flying.message = piece.message;
    flying.offset = piece.offset;
    flying.bytes = piece.bytes;
    flying.again = piece.again;
    try {
      if (send(*rail, std::move(flying), head, message.data + (piece.intro ? 0 : piece.offset),
               piece.bytes, now)) {
        queued_bytes_ -= piece.bytes;
        return true;
      }
      rail->refused = true;
    } catch (const Error& error) {
      lose(*rail, error, now);
    }
  }
}

bool SenderCore::send_control(Rail& rail, Kind kind, std::span<const std::byte> following,
                              Head head, Clock::time_point now) {
  head.kind = kind;
  Flying flying;
  flying.kind = kind;
  flying.probe = kind == Kind::kProbe ? head.message : 0;
  return send(rail, std::move(flying), head, following.data(), following.size(), now);
}

// @return false when the provider takes nothing now
bool SenderCore::send(Rail& rail, Flying flying, Head head, const std::byte* following,
                      std::size_t bytes, Clock::time_point now) {
  const bool is_piece = flying.kind == Kind::kPiece || flying.kind == Kind::kFill;
  seal(head, {following, bytes}, !is_piece || context_.sums);
  const auto head_bytes = std::as_bytes(std::span(&head, 1));
  if (is_piece && bytes > kCopiedBytes && rail.forth->splits_messages()) {
    flying.request = rail.forth->send_split(head_bytes, following, bytes, kTag);
    flying.lends = flying.message != nullptr;
  } else {
    flying.staged = std::make_unique_for_overwrite<std::byte[]>(kHeadBytes + bytes);
    std::memcpy(flying.staged.get(), head_bytes.data(), kHeadBytes);
    if (bytes > 0) std::memcpy(flying.staged.get() + kHeadBytes, following, bytes);
    flying.request = rail.forth->send(flying.staged.get(), kHeadBytes + bytes, kTag, nullptr);
  }
  if (flying.request == nullptr) return false;
  if (flying.lends) ++flying.message->lent;
  if (is_piece) {
    if (rail.outstanding == 0) rail.busy_since = now;
    rail.outstanding += bytes;
  }
  ++rail.sent;
  rail.flying.push_back(std::move(flying));
  return true;
}

}  // namespace ropewalk::transport::rails
