#include "bootstrap/monitor.h"

#include "bootstrap/wire.h"
#include "core/error.h"

namespace ropewalk::bootstrap {

std::vector<std::byte> encode_notices(std::span<const Notice> notices) {
  WireWriter out;
  out.number(static_cast<std::uint32_t>(notices.size()));
  for (const Notice& notice : notices) {
    out.number(static_cast<std::uint8_t>(notice.kind));
    out.number(static_cast<std::int32_t>(notice.subject));
    out.number(static_cast<std::int32_t>(notice.origin));
    out.number(notice.sequence);
    out.text(std::string_view(notice.reason).substr(0, Notice::kMaxReasonBytes));
  }
  return out.take();
}

std::vector<Notice> decode_notices(std::span<const std::byte> bytes, int size) {
  WireReader in(bytes);
  const auto count = in.number<std::uint32_t>();
  std::vector<Notice> notices;  // grows as bytes are read, whatever `count` claims
  for (std::uint32_t i = 0; i < count; ++i) {
    Notice notice;
    const auto kind = in.number<std::uint8_t>();
    if (kind < 1 || kind > 5) throw Error(Errc::kInvalidArgument, "unknown notice {}", kind);
    notice.kind = static_cast<Notice::Kind>(kind);
    notice.subject = in.number<std::int32_t>();
    notice.origin = in.number<std::int32_t>();
    notice.sequence = in.number<std::uint32_t>();
    notice.reason = in.text(Notice::kMaxReasonBytes);
    if (notice.subject < 0 || notice.subject >= size || notice.origin < 0 ||
        notice.origin >= size) {
      throw Error(Errc::kInvalidArgument, "notice of rank {} about rank {} of {}", notice.origin,
                  notice.subject, size);
    }
    notices.push_back(std::move(notice));
  }
  if (!in.empty()) throw Error(Errc::kInvalidArgument, "bytes after the last notice");
  return notices;
}

Membership::Membership(int rank, int size)
    : rank_(rank),
      states_(static_cast<std::size_t>(size), State::kAlive),
      reasons_(static_cast<std::size_t>(size)) {}

bool Membership::merge(const Notice& notice) {
  const auto subject = static_cast<std::size_t>(notice.subject);
  if (notice.kind == Notice::Kind::kSuspected || notice.kind == Notice::Kind::kCleared) {
    Suspicion& suspicion = suspicions_[{notice.subject, notice.origin}];
    if (notice.sequence <= suspicion.sequence) return false;
    suspicion.sequence = notice.sequence;
    suspicion.suspected = notice.kind == Notice::Kind::kSuspected;
    return true;
  }
  // Final states: the first one stays.
  if (states_[subject] != State::kAlive) return false;
  switch (notice.kind) {
    case Notice::Kind::kLost: states_[subject] = State::kLost; break;
    case Notice::Kind::kLeft: states_[subject] = State::kLeft; break;
    case Notice::Kind::kAborted: states_[subject] = State::kAborted; break;
    case Notice::Kind::kSuspected:
    case Notice::Kind::kCleared: break;
  }
  reasons_[subject] = notice.reason;
  ended_.push_back(notice.subject);
  return true;
}

bool Membership::set_suspected(int subject, bool suspected, Notice* notice) {
  if (!suspected && !suspicions_.contains({subject, rank_})) return false;
  Suspicion& suspicion = suspicions_[{subject, rank_}];
  if (suspicion.suspected == suspected) return false;
  suspicion.suspected = suspected;
  ++suspicion.sequence;
  *notice = {suspected ? Notice::Kind::kSuspected : Notice::Kind::kCleared,
             subject,
             rank_,
             suspicion.sequence,
             {}};
  return true;
}

bool Membership::suspected(int rank) const {
  if (state(rank) != State::kAlive) return false;
  for (auto suspicion = suspicions_.lower_bound({rank, 0});
       suspicion != suspicions_.end() && suspicion->first.first == rank; ++suspicion) {
    // A dead rank's suspicions no longer count.
    if (suspicion->second.suspected && state(suspicion->first.second) == State::kAlive) return true;
  }
  return false;
}

int Membership::first_failure() const noexcept {
  for (const int rank : ended_) {
    if (state(rank) != State::kLeft && rank != rank_) return rank;
  }
  return -1;
}

int Membership::next_alive(int after) const {
  for (int step = 1; step <= size(); ++step) {
    const int candidate = (after + step) % size();
    if (candidate != rank_ && state(candidate) == State::kAlive) return candidate;
  }
  return -1;
}

std::vector<Notice> Membership::snapshot() const {
  std::vector<Notice> all;
  for (const int rank : ended_) {
    switch (state(rank)) {
      case State::kAlive: break;
      case State::kLost: all.push_back({Notice::Kind::kLost, rank, rank_, 0, reason(rank)}); break;
      case State::kLeft: all.push_back({Notice::Kind::kLeft, rank, rank_, 0, {}}); break;
      case State::kAborted:
        all.push_back({Notice::Kind::kAborted, rank, rank_, 0, reason(rank)});
        break;
    }
  }
  for (const auto& [who, suspicion] : suspicions_) {
    if (suspicion.sequence == 0) continue;
    all.push_back({suspicion.suspected ? Notice::Kind::kSuspected : Notice::Kind::kCleared,
                   who.first,
                   who.second,
                   suspicion.sequence,
                   {}});
  }
  return all;
}

}  // namespace ropewalk::bootstrap
