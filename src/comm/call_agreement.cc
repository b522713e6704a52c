#include "comm/call_agreement.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/log.h"

namespace ropewalk::comm {
namespace {

constexpr std::uint32_t kTag = 0x47000000;

// A call that comes to the limit takes some 60 ns for it: seldom enough, and calls that are longer
// come to it each time.
constexpr std::chrono::microseconds kShortBlock{100};
constexpr std::chrono::microseconds kLongBlock{1000};
constexpr std::uint64_t kMostCalls = 4096;

constexpr std::chrono::milliseconds kCheckPeriod{1};

}  // namespace

CallAgreement::CallAgreement(bootstrap::Bootstrap& bootstrap) : bootstrap_(bootstrap) {
  bootstrap_.on_message(
      kTag, [this](int peer, std::span<const std::byte> bytes) { on_message(peer, bytes); });
}

CallAgreement::~CallAgreement() { bootstrap_.on_message(kTag, nullptr); }

CallAgreement::Message CallAgreement::message_of(Kind kind, const AgreementSubject& subject,
                                                 std::uint64_t value) {
  Message message;
  message.kind = kind;
  message.on_device = subject.on_device ? 1 : 0;
  message.collective = static_cast<std::uint32_t>(subject.collective);
  message.root = subject.root;
  message.proposal = subject.proposal;
  message.value = value;
  return message;
}

void CallAgreement::ready(const AgreementSubject& subject, std::uint64_t digest) {
  RW_ASSERT(subject.proposal == 0);
  const Lock lock(mutex_);
  send(0, message_of(Kind::kReady, subject, digest));
}

AgreementSubject CallAgreement::propose(bool on_device, std::uint64_t value) {
  RW_ASSERT(bootstrap_.rank() == 0);
  const Lock lock(mutex_);
  AgreementSubject subject;
  subject.on_device = on_device;
  subject.proposal = ++last_proposal_;
  if (!some_left_) send_all(message_of(Kind::kAsk, subject, value));
  return subject;
}

std::uint64_t CallAgreement::pass(std::uint64_t number, const std::function<void()>& check) {
  Lock lock(mutex_);
  while (number >= limit_ && !asked_.empty()) {
    lock.unlock();
    check();
    lock.lock();
    const auto end = Clock::now() + kCheckPeriod;
    const auto answered = [this]() RW_REQUIRES(mutex_) { return asked_.empty(); };
    (void)lock.wait_until(changed_, end, answered, kCheckPeriod, [] {});
  }
  if (number >= limit_) {
    const Clock::time_point now = Clock::now();
    const auto took = now - raised_;
    if (took < kShortBlock) {
      block_ = std::min(block_ * 2, kMostCalls);
    } else if (took > kLongBlock) {
      block_ = std::max<std::uint64_t>(1, block_ / 2);
    }
    raised_ = now;
    limit_ = number + block_;
  }
  std::uint64_t stop = limit_;
  for (const auto& [subject, first] : first_) {
    if (first > number) stop = std::min(stop, first);
  }
  return stop;
}

std::vector<CallAgreement::Begun> CallAgreement::take(bool on_device, std::uint64_t number) {
  const Lock lock(mutex_);
  std::vector<Begun> due;
  for (const auto& [subject, first] : first_) {
    if (subject.on_device == on_device && first <= number && taken_.insert(subject).second) {
      const auto value = values_.find(subject);
      due.push_back({subject, value == values_.end() ? 0 : value->second});
    }
  }
  update_next();
  return due;
}

std::uint64_t CallAgreement::first_call(const AgreementSubject& subject) const {
  const Lock lock(mutex_);
  const auto found = first_.find(subject);
  return found == first_.end() ? kNever : found->second;
}

void CallAgreement::leave() noexcept {
  const Lock lock(mutex_);
  if (leaving_) return;
  try {
    Message message;
    message.kind = Kind::kLeaving;
    send(0, message);
  } catch (const std::exception&) {
    // Rank 0 has left: it answered all that it had asked before.
  }
  leaving_ = true;
}

// ---- messages ---------------------------------------------------------------------------

void CallAgreement::on_message(int peer, std::span<const std::byte> bytes) noexcept {
  Message message;
  if (bytes.size() != sizeof message) return;  // no rank of this build sent it
  std::memcpy(&message, bytes.data(), sizeof message);
  const Lock lock(mutex_);
  handle(peer, message);
}

void CallAgreement::handle(int peer, const Message& message) {
  const AgreementSubject subject{message.on_device != 0,
                                 static_cast<Collective>(message.collective), message.root,
                                 message.proposal};
  switch (message.kind) {
    case Kind::kReady: on_ready(peer, subject, message.value); return;
    case Kind::kAsk:
      asked_.insert(subject);
      if (subject.proposal != 0) values_[subject] = message.value;
      send(0, message_of(Kind::kLimit, subject, limit_));
      return;
    case Kind::kLimit: on_limit(peer, subject, message.value); return;
    case Kind::kFrom: on_from(subject, message.value); return;
    case Kind::kLeaving:
      some_left_ = true;
      for (auto& [its_subject, vote] : votes_) decide(its_subject, vote, kNever);
      return;
  }
}

void CallAgreement::send(int peer, const Message& message) {
  if (leaving_) return;
  if (peer == bootstrap_.rank()) {
    handle(peer, message);
    return;
  }
  try {
    bootstrap_.send(peer, kTag, std::as_bytes(std::span(&message, 1)));
  } catch (const Error& error) {
    // The peer has left in order and will make no call, or the communicator is broken.
    log::trace(log::kTuning, "rank {} to rank {}: {}", bootstrap_.rank(), peer, error.what());
  }
}

void CallAgreement::send_all(const Message& message) {
  for (int peer = bootstrap_.size(); peer-- > 0;) send(peer, message);
}

// ---- rank 0 -----------------------------------------------------------------------------

void CallAgreement::on_ready(int peer, const AgreementSubject& subject, std::uint64_t digest) {
  Vote& vote = votes_[subject];
  vote.digests[peer] = digest;
  // With all others: they come in any order.
  const auto other =
      std::ranges::find_if(vote.digests, [&](const auto& entry) { return entry.second != digest; });
  if (digest == 0 || some_left_) {
    decide(subject, vote, kNever);
  } else if (other != vote.digests.end()) {
    if (!vote.decided) {
      log::warn("ranks {} and {} have different plans for {}: the plans in use stay", peer,
                other->first, name(subject.collective));
    }
    decide(subject, vote, kNever);
  } else if (vote.digests.size() == static_cast<std::size_t>(bootstrap_.size()) && !vote.decided) {
    send_all(message_of(Kind::kAsk, subject, 0));
  }
}

void CallAgreement::on_limit(int peer, const AgreementSubject& subject, std::uint64_t limit) {
  Vote& vote = votes_[subject];
  vote.limits_of.insert(peer);
  vote.most = std::max(vote.most, limit);
  if (vote.limits_of.size() == static_cast<std::size_t>(bootstrap_.size())) {
    decide(subject, vote, vote.most);
  }
}

void CallAgreement::decide(const AgreementSubject& subject, Vote& vote, std::uint64_t number) {
  if (vote.decided) return;
  vote.decided = true;
  send_all(message_of(Kind::kFrom, subject, number));
}

// ---- every rank -------------------------------------------------------------------------

void CallAgreement::on_from(const AgreementSubject& subject, std::uint64_t number) {
  asked_.erase(subject);
  if (number != kNever) {
    RW_ASSERT(number >= limit_);
    first_[subject] = number;
    update_next();
  }
  changed_.notify_all();
}

void CallAgreement::update_next() {
  std::array<std::uint64_t, 2> next{kNever, kNever};
  for (const auto& [subject, first] : first_) {
    if (taken_.contains(subject)) continue;
    std::uint64_t& of_memory = next[subject.on_device ? 1 : 0];
    of_memory = std::min(of_memory, first);
  }
  for (std::size_t i = 0; i < next.size(); ++i) {
    next_[i].store(next[i], std::memory_order_relaxed);
  }
}

}  // namespace ropewalk::comm
