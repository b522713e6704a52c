#include "handshake/handshake_watch.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "executor/block/handshake.h"
#include "executor/block/host_stop.h"

namespace ropewalk::handshake {
namespace {

using executor::StopReason;
using executor::StopRecord;

constexpr std::chrono::milliseconds kMostComparePeriod{100};

bool waits(const HandshakeState& state) noexcept {
  return state.phase == HandshakePhase::kEntering || state.phase == HandshakePhase::kLeaving;
}

}  // namespace

HandshakeWatch::HandshakeWatch(const HandshakeWords& words, executor::Control& control, int rank,
                               bool check_tags)
    : words_(words),
      control_(control),
      rank_(rank),
      check_tags_(check_tags),
      thread_([this](Clock::time_point now, std::chrono::nanoseconds limit) {
        return look(now, limit);
      }) {}

bool HandshakeWatch::still_at(const HandshakeState& state) const noexcept {
  // The stream writes no state that is seen: this one has stood there since it was.
  return HandshakeWords::load(words_.state(rank_)) == state.word();
}

bool HandshakeWatch::look(Clock::time_point now, std::chrono::nanoseconds limit) {
  std::uint64_t& word = words_.state(rank_);
  HandshakeState state = HandshakeState::of(HandshakeWords::load(word));
  const bool ends = std::atomic_ref(control_.abort).load() != 0;
  if (ends) {
    // Behind a copy comes a wait that has to end as well.
    if (waits(state)) release(state);
    return state.phase != HandshakePhase::kNone;
  }
  if (!waits(state)) return false;
  if (!state.seen) {
    std::uint64_t before = state.word();
    state.seen = true;
    if (std::atomic_ref(word).compare_exchange_strong(before, state.word())) {
      since_ = compare_ = now;
    }
    return false;
  }
  if (state.phase == HandshakePhase::kEntering && now >= compare_) {
    if (const auto own = words_.find_value(rank_, state.value)) look_for_difference(state, *own);
    // It reads thousands of words where a rank has not called yet.
    compare_ = now + std::min<Clock::duration>((now - since_) / 4, kMostComparePeriod);
  }
  if (limit.count() > 0 && now - since_ >= limit && still_at(state)) {
    StopRecord record;
    record.reason = static_cast<std::uint32_t>(StopReason::kTimeout);
    record.own = words_.find_value(rank_, state.value).value_or(HandshakeCall{}).tag;
    executor::stop_once(control_, record);
  }
  return false;
}

void HandshakeWatch::look_for_difference(const HandshakeState& state, const HandshakeCall& own) {
  for (int peer = 0; peer < words_.ranks(); ++peer) {
    if (peer == rank_) continue;
    // A peer's word may stand for a call that it has not noted yet: the next look finds that.
    const std::uint64_t told = HandshakeWords::load(words_.entered(rank_, peer));
    if (told == state.value) continue;
    std::optional<HandshakeCall> theirs;
    if (told != 0) theirs = words_.find_value(peer, told);
    // It may have left the call to kernels, or be in another one altogether.
    if (!theirs.has_value() && check_tags_) theirs = words_.find_call(peer, own.tag.call);
    if (!theirs.has_value()) continue;
    // Behind a rank that gave up run all calls that it has enqueued: what it says of later ones is
    // no difference. It has spoiled this rank's words before that.
    const bool same_number = check_tags_ && theirs->tag.call == own.tag.call;
    if (!same_number && HandshakeWords::load(words_.spoiled(rank_)) != 0) continue;
    StopRecord record;
    record.peer = peer;
    record.own = own.tag;
    if (check_tags_ && theirs->tag != own.tag) {
      record.reason = static_cast<std::uint32_t>(StopReason::kMismatch);
      record.theirs = theirs->tag;
    } else if (told != 0 && theirs->location != own.location) {
      record.reason = static_cast<std::uint32_t>(StopReason::kWrongLocation);
      record.got = theirs->location;
      record.expected = own.location;
    } else {
      continue;
    }
    // Otherwise the word may be that of the next call.
    if (still_at(state)) executor::stop_once(control_, record);
    return;
  }
}

void HandshakeWatch::release(const HandshakeState& state) noexcept {
  const bool enters = state.phase == HandshakePhase::kEntering;
  for (int peer = 0; peer < words_.ranks() && enters; ++peer) {
    // The stream will say that copies are done which the peer has not asked for yet.
    if (peer != rank_) HandshakeWords::store(words_.spoiled(peer), 1);
  }
  for (int peer = 0; peer < words_.ranks(); ++peer) {
    if (peer == rank_) continue;
    HandshakeWords::store(enters ? words_.entered(rank_, peer) : words_.left(rank_, peer),
                          state.value);
  }
  if (!enters) HandshakeWords::store(words_.spoiled(rank_), 0);
}

}  // namespace ropewalk::handshake
