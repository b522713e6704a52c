#include "transport/messaging/psm2/receiver.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>

#include "core/socket.h"
#include "transport/simple_requests.h"

namespace ropewalk::transport::psm2 {
namespace {

constexpr abi::Tag kMessageMask{{kWhole, kWhole, 0}};
// Messages that have come before their receives: beyond, the sender's probe is not met.
constexpr std::int32_t kMostHeld = 256;

}  // namespace

Receiver::Receiver(Lease lease, SideChannel side, std::string peer, Verify verify, Gpus& gpus,
                   tcp::Linger& linger)
    : Connection(std::move(lease), std::move(side), std::move(peer), verify, gpus, linger, true) {
  join();
}

Receiver::~Receiver() {
  const Spin lock(port_.mutex);
  // Not a member any more: who drives the endpoint for another connection judges none of these.
  if (const std::unique_ptr<Trials> trials = std::move(trials_)) {
    for (Posted& posted : trials->posted) {
      if (!posted.finished) withdraw_locked(posted);
    }
  }
  port_.withdraw(probe_);
  // What libpsm2 owes the sender for messages that have come goes out with a later poll.
  port_.poll();
  port_.poll();
  side_.send(Note::kEnd, "");
  leave();
}

bool Receiver::ready() RW_NO_THREAD_ANALYSIS {
  Connection::throw_if_failed();
  if (!port_.mutex.try_lock()) return ready_;
  const std::lock_guard lock(port_.mutex, std::adopt_lock);
  drive();
  Connection::throw_if_failed();
  if (!ready_ && closed_) {
    fail(Errc::kPeerLost, "the peer was closed before the connection was verified");
    Connection::throw_if_failed();
  }
  return ready_;
}

std::unique_ptr<Registration> Receiver::register_memory(void* data, std::size_t bytes,
                                                        MemoryKind kind) {
  return gpus_.register_memory(port_, data, bytes, kind);
}

std::unique_ptr<Request> Receiver::receive(std::span<const ReceiveBuffer> buffers) {
  check_buffers(buffers, kMaxGroup, kMaxMessageBytes);
  for (const ReceiveBuffer& each : buffers) check_holds(each.registration, each.data, each.bytes);
  Connection::throw_if_failed();
  if (port_.connecting()) return nullptr;  // the mutex may be held for long
  if (active_ >= kMaxRequests) {
    const Spin lock(port_.mutex);
    drive();
    Connection::throw_if_failed();
    return nullptr;
  }
  if (!closed_) return std::make_unique<ReceiveRequest<Receiver>>(*this, buffers);
  bool over = false;
  {
    const Spin lock(port_.mutex);
    drive();
    Connection::throw_if_failed();
    over = exhausted();
  }
  // What has come lies in libpsm2, and meets its receive at once.
  auto request = std::make_unique<ReceiveRequest<Receiver>>(*this, buffers);
  if (over && !request->at_hand()) throw named(Errc::kPeerLost, why_exhausted());
  return request;
}

std::unique_ptr<Request> Receiver::flush(std::span<const ReceiveBuffer> buffers) {
  // With kFlagGdrCopyOnly the CPU writes GPU memory: libpsm2 ends a receive when that is done.
  return std::make_unique<FinishedRequest>(std::vector<std::size_t>(buffers.size(), 0));
}

void Receiver::post(Posted& posted) {
  const Spin lock(port_.mutex);
  post_locked(posted);
}

void Receiver::post_locked(Posted& posted) {
  posted_.push_back(&posted);
  if (!greeted_ || failed()) return;  // on_greeted() starts it
  try {
    start(posted);
  } catch (const Error& error) {
    fail(error.code(), error.what());
  }
}

abi::Tag Receiver::tag_of(const Posted& posted) const {
  return {{posted.buffer.tag, identity_, 0}};
}

void Receiver::start(Posted& posted) {
  if (sums_) return take_what_came(posted_);
  const ReceiveBuffer& buffer = posted.buffer;
  check(port_.start_receive(tag_of(posted), kMessageMask, flags_of(buffer.registration),
                            buffer.data, buffer.bytes, posted.queued),
        "psm2_mq_irecv2");
  look_at(posted);
}

// Looking makes progress: a message that was not there for a receive may be there for a later one
// of the same tag, which must not have it.
void Receiver::take_what_came(std::span<Posted* const> all) {
  std::vector<std::uint32_t> waiting;
  for (Posted* const posted : all) {
    const std::uint32_t tag = posted->buffer.tag;
    if (posted->queued != nullptr || failed()) continue;
    if (std::find(waiting.begin(), waiting.end(), tag) != waiting.end()) continue;
    if (!take_what_came(*posted)) waiting.push_back(tag);
  }
  for (Posted* const posted : std::vector<Posted*>(all.begin(), all.end())) look_at(*posted);
}

bool Receiver::take_what_came(Posted& posted) {
  abi::Status status{};
  if (port_.retired() || !port_.has_come(tag_of(posted), kMessageMask, status)) return false;
  const ReceiveBuffer& buffer = posted.buffer;
  if (status.sent_bytes > buffer.bytes) {
    fail(Errc::kInvalidUsage, messaging::too_long(status.sent_bytes, buffer.tag, buffer.bytes));
    return false;
  }
  check(port_.start_receive(tag_of(posted), kMessageMask, flags_of(buffer.registration),
                            buffer.data, buffer.bytes, posted.queued),
        "psm2_mq_irecv2");
  return true;
}

void Receiver::look_at(Posted& posted) {
  if (posted.queued == nullptr) return;
  abi::Status status{};
  if (!port_.ended(posted.queued, status)) return;
  posted.queued = nullptr;
  const ReceiveBuffer& buffer = posted.buffer;
  const std::uint32_t judged = status.tag.words[2] ^ nonce_;
  if (status.error == abi::kTruncated) {
    return fail(Errc::kInvalidUsage, messaging::too_long(judged, buffer.tag, buffer.bytes));
  }
  if (status.error != abi::kOk) {
    return fail(Errc::kPeerLost, fmt::format("a message of tag {}: {}", buffer.tag,
                                             port_.library().words(status.error)));
  }
  if (const int error = port_.failed_copy(buffer.data, buffer.bytes); error != 0) {
    const char* const advice = error == EPERM ? "; PSM2_KASSIST_MODE=none avoids such copies" : "";
    return fail(Errc::kPeerLost, fmt::format("process_vm_readv of {} bytes from the peer: {}{}",
                                             status.received_bytes, system_words(error), advice));
  }
  posted.bytes = status.received_bytes;
  if (sums_ && !checksum_is(judged, posted)) return;
  // The sender of a long message, or of one that was asked for, learns of this with a poll that
  // follows it, and nobody may call here again.
  if (posted.bytes > kEagerBytes || asks_for_each()) port_.poll();
  ++arrived_;
  std::erase(posted_, &posted);
  posted.finished.store(true, std::memory_order_release);
}

bool Receiver::checksum_is(std::uint32_t expected, const Posted& posted) {
  const ReceiveBuffer& buffer = posted.buffer;
  try {
    if (static_cast<std::uint32_t>(checksum_of(buffer.registration, buffer.data, posted.bytes)) ==
        expected) {
      return true;
    }
    fail(Errc::kPeerLost,
         fmt::format("a message of {} bytes arrived with a wrong checksum", posted.bytes));
  } catch (const Error& error) {  // of a copy from GPU memory
    fail(error.code(), error.what());
  }
  return false;
}

void Receiver::on_greeted() {
  const std::vector<Posted*> early = posted_;
  try {
    if (verifies_) {
      trials_ = std::make_unique<Trials>();
      trials_->memory.resize(
          std::accumulate(kPatternBytes.begin(), kPatternBytes.end(), std::size_t{0}));
      std::size_t at = 0;
      for (std::size_t i = 0; i < kPatternBytes.size(); at += kPatternBytes[i++]) {
        trials_->posted[i].buffer = {trials_->memory.data() + at, kPatternBytes[i],
                                     messaging::kPatternTag, nullptr};
      }
      // First, as the sender's patterns are its first messages.
      for (Posted& posted : trials_->posted) {
        posted_.push_back(&posted);
        start(posted);
      }
    } else {
      ready_ = true;
    }
    for (Posted* const posted : early) start(*posted);
  } catch (const Error& error) {
    fail(error.code(), error.what());
  }
}

void Receiver::judge_trials() {
  for (Posted& posted : trials_->posted) look_at(posted);
  if (failed()) return;
  for (const Posted& posted : trials_->posted) {
    if (!posted.finished) return;
  }
  std::vector<std::byte> expected(trials_->memory.size());
  messaging::fill_pattern(expected, seed_);
  std::size_t at = 0;
  for (std::size_t i = 0; i < kPatternBytes.size(); at += kPatternBytes[i++]) {
    const Posted& posted = trials_->posted[i];
    if (posted.bytes == kPatternBytes[i] &&
        std::memcmp(expected.data() + at, trials_->memory.data() + at, kPatternBytes[i]) == 0) {
      continue;
    }
    return fail(Errc::kPeerLost, fmt::format("verification: a pattern of {} bytes arrived changed",
                                             kPatternBytes[i]));
  }
  trials_.reset();
  ready_ = true;
  side_.send(Note::kVerified, "");
}

void Receiver::attend_probe() {
  abi::Status status{};
  if (probe_ != nullptr) {
    if (!port_.ended(probe_, status)) return;
    probe_ = nullptr;
    sent_ = status.tag.words[0];
  }
  // What has come and was not asked for lies in libpsm2's memory.
  if (static_cast<std::int32_t>(sent_ - static_cast<std::uint32_t>(arrived_)) > kMostHeld) return;
  check(port_.start_receive({{0, kProbe | identity_, nonce_}}, {{0, kWhole, kWhole}}, 0, nullptr, 0,
                            probe_),
        "psm2_mq_irecv2");
}

void Receiver::attend() {
  if (failed()) return tell_stopped();
  if (!greeted_ || port_.retired()) return;
  attend_probe();
  if (trials_) judge_trials();
  if (sums_) take_what_came(posted_);
}

bool Receiver::withdraw_all() {
  bool all = true;
  const auto withdraw_one = [&](Posted& posted) RW_NO_THREAD_ANALYSIS {
    if (posted.queued == nullptr) return;
    look_at(posted);
    if (posted.queued != nullptr && !port_.withdraw(posted.queued)) all = false;
  };
  for (Posted* const posted : std::vector<Posted*>(posted_)) withdraw_one(*posted);
  return all;
}

void Receiver::tell_stopped() {
  if (stopped_told_ || !withdraw_all()) return;
  stopped_told_ = true;
  side_.send(Note::kStopped, "");
}

void Receiver::on_failed() { tell_stopped(); }

void Receiver::on_note(const SideChannel::Received& note) {
  if (note.note == Note::kVerified) end_setup();
  if (note.note == Note::kEnd && note.payload.size() == sizeof(std::uint64_t)) {
    std::uint64_t total = 0;
    std::memcpy(&total, note.payload.data(), sizeof total);
    total_ = total;
  }
}

void Receiver::progress(std::span<Posted> posted) RW_NO_THREAD_ANALYSIS {
  // Held by another: progress is being made, or a peer is being connected to.
  if (!port_.mutex.try_lock()) return;
  const std::lock_guard lock(port_.mutex, std::adopt_lock);
  if (port_.poll() && !sums_) {
    // The message that has arrived is mostly the one that is waited for.
    for (Posted& each : posted) look_at(each);
    if (std::all_of(posted.begin(), posted.end(),
                    [](const Posted& each) -> bool { return each.finished; })) {
      return;
    }
  }
  drive();
  for (Posted& each : posted) look_at(each);
}

void Receiver::throw_if_failed() {
  Connection::throw_if_failed();
  if (!closed_) return;
  const Spin lock(port_.mutex);
  if (exhausted()) throw named(Errc::kPeerLost, why_exhausted());
}

bool Receiver::exhausted() { return closed_ && ((total_ && arrived_ >= *total_) || drained()); }

std::string Receiver::why_exhausted() const {
  return total_ ? "the sender was closed" : side_.reason();
}

void Receiver::withdraw(Posted& posted) {
  const Spin lock(port_.mutex);
  withdraw_locked(posted);
}

void Receiver::withdraw_locked(Posted& posted) {
  // A sender that was closed sends nothing more.
  if (!closed_ || !exhausted()) fail(Errc::kAborted, "a receive was cancelled before it completed");
  const auto gone = [&]() RW_NO_THREAD_ANALYSIS {
    look_at(posted);
    return port_.withdraw(posted.queued);
  };
  if (!drive_until(gone) && !peer_gone()) {
    port_.retire(fmt::format("libpsm2 does not let go of a receive of {} bytes that was given up",
                             posted.buffer.bytes));
  }
  std::erase(posted_, &posted);
}

std::string Receiver::describe() const RW_NO_THREAD_ANALYSIS {
  const std::lock_guard lock(port_.mutex);
  if (!greeted_) return "the peer's hello";
  if (trials_) return "the patterns that verify the connection";
  if (posted_.empty()) return {};
  return fmt::format("a message of tag {}, the first of {} receives", posted_.front()->buffer.tag,
                     posted_.size());
}

}  // namespace ropewalk::transport::psm2
