#include "transport/messaging/psm2/sender.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "transport/simple_requests.h"

namespace ropewalk::transport::psm2 {
namespace {

// libpsm2's small packets carry less than this.
constexpr std::size_t kPacketBytes = 32;

}  // namespace

class SendRequest final : public Request {
 public:
  SendRequest(Sender& sender, std::size_t message_bytes, unsigned queue_units, bool until_probed)
      : bytes(message_bytes),
        units(queue_units),
        probed(until_probed),
        sender_(sender),
        sizes_{message_bytes} {}
  ~SendRequest() override RW_NO_THREAD_ANALYSIS {
    if (finished.load(std::memory_order_acquire)) return;
    const Spin lock(sender_.port_.mutex);
    sender_.abandon(*this);
  }
  SendRequest(const SendRequest&) = delete;
  SendRequest& operator=(const SendRequest&) = delete;

  std::optional<std::size_t> test() override RW_NO_THREAD_ANALYSIS {
    if (finished.load(std::memory_order_acquire)) return bytes;
    // Held by another: progress is being made, or a peer is being connected to.
    if (!sender_.port_.mutex.try_lock()) return std::nullopt;
    const std::lock_guard lock(sender_.port_.mutex, std::adopt_lock);
    sender_.look_at(*this);
    if (!finished) {
      sender_.drive();
      sender_.look_at(*this);
    }
    if (finished) return bytes;
    sender_.fail_if_peer_ended();
    return std::nullopt;
  }
  [[nodiscard]] bool at_hand() const override { return finished; }
  [[nodiscard]] std::span<const std::size_t> sizes() const override { return sizes_; }

  const std::size_t bytes;
  const unsigned units;
  const bool probed;  // its units count until a later probe was met, not until it has ended
  abi::QueueRequest* queued = nullptr;
  std::atomic<bool> finished = false;

 private:
  Sender& sender_;
  std::array<std::size_t, 1> sizes_;
};

Sender::Sender(Lease lease, SideChannel side, std::string peer, Verify verify, Gpus& gpus,
               tcp::Linger& linger)
    : Connection(std::move(lease), std::move(side), std::move(peer), verify, gpus, linger, false) {
  join();
}

Sender::~Sender() {
  trials_.clear();
  const Spin lock(port_.mutex);
  if (peer_ != nullptr) peer_->wanted = false;
  // A probe's memory is none, and its end concerns nobody any more.
  side_.send(Note::kEnd, std::as_bytes(std::span(&messages_, 1)));
  leave();
}

bool Sender::ready() RW_NO_THREAD_ANALYSIS {
  throw_if_failed();
  if (verified_) return true;
  if (!port_.mutex.try_lock()) return false;
  const std::lock_guard lock(port_.mutex, std::adopt_lock);
  drive();
  throw_if_failed();
  begin_trials();
  throw_if_failed();
  if (closed_ && !verified_) {
    fail(Errc::kPeerLost, "the peer was closed before the connection was verified");
    throw_if_failed();
  }
  return verified_;
}

std::unique_ptr<Registration> Sender::register_memory(void* data, std::size_t bytes,
                                                      MemoryKind kind) {
  return gpus_.register_memory(port_, data, bytes, kind);
}

std::unique_ptr<Request> Sender::send(const void* data, std::size_t bytes, std::uint32_t tag,
                                      Registration* registration) RW_NO_THREAD_ANALYSIS {
  check_buffer(data, bytes, kMaxMessageBytes);
  check_holds(registration, data, bytes);
  throw_if_failed();
  if (!verified_ && !ready()) return nullptr;
  if (!port_.mutex.try_lock()) return nullptr;
  const std::lock_guard lock(port_.mutex, std::adopt_lock);
  if (closed_) {
    fail(Errc::kPeerLost, peer_gone() ? side_.reason() : "the peer was closed");
    throw_if_failed();
  }
  try {
    return start(data, bytes, tag, registration);
  } catch (const Error& error) {
    fail(error.code(), error.what());
    throw_if_failed();
    throw;
  }
}

unsigned Sender::units_of(std::size_t bytes) const {
  // Long messages have one packet in the queue until their receive is found.
  if (bytes > kEagerBytes) return to_itself() ? std::max(window_ / 8, 1U) : kPacketUnits;
  const unsigned units = bytes <= kPacketBytes ? kPacketUnits : kPieceUnits;
  return asks_for_each() ? kPacketUnits : units;
}

bool Sender::has_room(unsigned units) {
  if (active_ < kMaxRequests && under_way_ + units <= window_) return true;
  if (unprobed_ > 0) probe();
  drive();
  throw_if_failed();
  return active_ < kMaxRequests && under_way_ + units <= window_;
}

std::unique_ptr<SendRequest> Sender::start(const void* data, std::size_t bytes, std::uint32_t tag,
                                           const Registration* registration) {
  const unsigned units = units_of(bytes);
  if (!has_room(units)) return nullptr;
  const std::uint32_t flags = flags_of(registration);
  const std::uint64_t judged = sums_ ? checksum_of(registration, data, bytes) : bytes;
  const abi::Tag full{{tag, identity_, nonce_ ^ static_cast<std::uint32_t>(judged)}};
  const bool asked_for = asks_for_each();
  const bool probed = to_itself() || (bytes <= kEagerBytes && !asked_for);
  auto request = std::make_unique<SendRequest>(*this, bytes, units, probed);
  if (bytes <= kEagerBytes && !asked_for && flags == 0) {
    const abi::Error error = port_.send(peer_->address, full, data, bytes);
    request->finished = true;
    check(error, "psm2_mq_send2");
    under_way_ += units;
    sent(units);
  } else {
    request->finished = true;  // until it has begun
    const std::uint32_t sync = bytes <= kEagerBytes && asked_for ? abi::kFlagSync : 0;
    check(port_.start_send(peer_->address, flags | sync, full, data, bytes, request->queued),
          "psm2_mq_isend2");
    request->finished = false;
    under_way_ += units;
    ++active_;
    look_at(*request);
  }
  ++messages_;
  return request;
}

void Sender::sent(unsigned units) {
  unprobed_ += units;
  if (unprobed_ >= window_ / 2) probe();
}

void Sender::probe() {
  if (probe_ != nullptr) return;
  const abi::Tag full{{static_cast<std::uint32_t>(messages_), kProbe | identity_, nonce_}};
  check(port_.start_send(peer_->address, abi::kFlagSync, full, nullptr, 0, probe_),
        "psm2_mq_isend2");
  probed_ = std::exchange(unprobed_, 0);
}

void Sender::attend() {
  if (probe_ != nullptr) {
    abi::Status status{};
    if (port_.ended(probe_, status)) {
      probe_ = nullptr;
      under_way_ -= std::exchange(probed_, 0);
    }
  }
}

void Sender::look_at(SendRequest& request) {
  if (request.finished) return;
  abi::Status status{};
  if (!port_.ended(request.queued, status)) return;
  request.queued = nullptr;
  if (status.error != abi::kOk && status.error != abi::kTruncated) {
    return fail(Errc::kPeerLost, fmt::format("a message of {} bytes: {}", request.bytes,
                                             port_.library().words(status.error)));
  }
  if (request.probed) {
    sent(request.units);
  } else {
    under_way_ -= request.units;
  }
  --active_;
  request.finished.store(true, std::memory_order_release);
}

void Sender::fail_if_peer_ended() {
  throw_if_failed();
  if (!drained()) return;
  fail(Errc::kPeerLost, peer_gone() ? side_.reason() : "the receiver was closed");
  throw_if_failed();
}

void Sender::abandon(SendRequest& request) {
  look_at(request);
  if (request.finished) return;
  fail(Errc::kAborted, "a send was cancelled before it completed");
  const auto left_alone = [&]() RW_NO_THREAD_ANALYSIS {
    abi::Status status{};
    if (port_.ended(request.queued, status)) request.queued = nullptr;
    return request.queued == nullptr || stopped_ || closed_;
  };
  if (!drive_until(left_alone) && !peer_gone()) {
    port_.retire(
        fmt::format("the peer does not say that it takes no message of {} bytes that was given up",
                    request.bytes));
  }
}

void Sender::on_greeted() {
  peer_ = &port_.peer(peer_id_);
  port_.reach(peer_id_);
}

bool Sender::reached() {
  if (!greeted_ || failed()) return false;
  switch (peer_->reach) {
    case Endpoint::Reach::kConnected: return true;
    case Endpoint::Reach::kFailed: fail(Errc::kPeerLost, peer_->why_failed); return false;
    case Endpoint::Reach::kUnknown:  // given up by another connection meanwhile
      port_.reach(peer_id_);
      return false;
    case Endpoint::Reach::kUnderWay: return false;
  }
  return false;
}

void Sender::begin_trials() {
  if (verified_ || !reached()) return;
  if (verifies_) {
    if (pattern_.empty()) {
      pattern_.resize(std::accumulate(kPatternBytes.begin(), kPatternBytes.end(), std::size_t{0}));
      messaging::fill_pattern(pattern_, seed_);
    }
    std::size_t at = 0;
    for (std::size_t i = 0; i < kPatternBytes.size(); at += kPatternBytes[i++]) {
      if (i < trials_.size()) continue;
      auto request = start(pattern_.data() + at, kPatternBytes[i], messaging::kPatternTag, nullptr);
      if (request == nullptr) return;
      trials_.push_back(std::move(request));
    }
    for (const auto& trial : trials_) look_at(*trial);
    const bool all = std::all_of(trials_.begin(), trials_.end(),
                                 [](const auto& trial) { return trial->finished.load(); });
    if (!patterns_right_ || !all) return;
    trials_.clear();
    pattern_ = {};
  }
  verified_ = true;
  end_setup();
  side_.send(Note::kVerified, "");
}

void Sender::on_note(const SideChannel::Received& note) {
  if (note.note == Note::kVerified) patterns_right_ = true;
  if (note.note == Note::kStopped) stopped_ = true;
}

std::string Sender::describe() const RW_NO_THREAD_ANALYSIS {
  const std::lock_guard lock(port_.mutex);
  if (!greeted_) return "the peer's hello";
  if (peer_->reach != Endpoint::Reach::kConnected) return "psm2_ep_connect to reach the peer";
  if (!verified_) return "the patterns that verify the connection";
  if (active_ > 0) return fmt::format("the receives of {} messages", active_);
  if (under_way_ + kPieceUnits > window_) return "the receiver, which has many messages already";
  return {};
}

}  // namespace ropewalk::transport::psm2
