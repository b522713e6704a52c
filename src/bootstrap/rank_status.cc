#include "bootstrap/rank_status.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/interrupt.h"

namespace ropewalk::bootstrap {

RankStatus::RankStatus(int rank, int size) : membership_(rank, size) {}

bool RankStatus::wait_joined(Deadline deadline) {
  Lock lock(mutex_);
  bool interrupt = false;
  const auto ended = [&]() RW_REQUIRES(mutex_) {
    return interrupt || phase_ != RankPhase::kJoining || join_error_;
  };
  const auto ask = [&interrupt] { interrupt = interrupted(); };
  const bool in_time = lock.wait_until(changed_, deadline, ended, kInterruptPeriod, ask);
  if (in_time && !interrupt) return true;
  join_error_ = interrupt ? Error(Errc::kInterrupted,
                                  "rank {} was interrupted by its program while it joined",
                                  membership_.rank())
                          : Error(Errc::kTimeout, "the service thread did not answer");
  return false;
}

void RankStatus::check_joined() const {
  const Lock lock(mutex_);
  // A copy of an exception shares its text, whose count of users the thread sanitizer cannot see.
  if (join_error_) throw Error(join_error_->code(), std::string(join_error_->what()));
}

void RankStatus::check_sendable(int peer) const {
  const Lock lock(mutex_);
  if (abort_reason_) throw Error(Errc::kAborted, "aborted: {}", *abort_reason_);
  if (left_) throw Error(Errc::kInvalidUsage, "this rank has left the communicator");
  std::string why;
  if (peer != membership_.rank() && membership_.state(peer) != Membership::State::kAlive &&
      blocked_by_loss(peer, MessageChannel::kMessages, &why)) {
    throw Error(Errc::kPeerLost, "bootstrap message to rank {}: {}", peer, why);
  }
}

void RankStatus::deliver(int peer, MessageChannel channel, std::uint32_t tag,
                         std::vector<std::byte> message) {
  {
    // Held from the check of the handlers on: a handler that is set meanwhile finds the message.
    const Lock handling(handlers_mutex_);
    if (channel == MessageChannel::kMessages) {
      if (const auto found = handlers_.find(tag); found != handlers_.end()) {
        found->second(peer, message);
        return;
      }
    }
    const Lock lock(mutex_);
    inbox_[{peer, channel, tag}].push_back(std::move(message));
  }
  changed_.notify_all();
}

void RankStatus::handle(std::uint32_t tag, MessageHandler handler) {
  const Lock handling(handlers_mutex_);
  if (handler == nullptr) {
    handlers_.erase(tag);
    return;
  }
  std::vector<std::pair<int, std::deque<std::vector<std::byte>>>> arrived;
  {
    const Lock lock(mutex_);
    for (auto item = inbox_.begin(); item != inbox_.end();) {
      const auto& [peer, channel, its_tag] = item->first;
      if (channel != MessageChannel::kMessages || its_tag != tag) {
        ++item;
        continue;
      }
      arrived.emplace_back(peer, std::move(item->second));
      item = inbox_.erase(item);
    }
  }
  const MessageHandler& set = handlers_[tag] = std::move(handler);
  for (const auto& [peer, messages] : arrived) {
    for (const std::vector<std::byte>& message : messages) set(peer, message);
  }
}

bool RankStatus::blocked_by_loss(int peer, MessageChannel channel, std::string* why) const {
  const Membership::State peer_state = membership_.state(peer);
  if (peer_state == Membership::State::kLeft) {
    *why = fmt::format("rank {} left the communicator", peer);
    return true;
  }
  if (channel == MessageChannel::kMessages && peer_state == Membership::State::kAlive) return false;
  // A rank that aborted because another was lost is not the cause.
  const int cause = peer_state == Membership::State::kLost ? peer : membership_.first_failure();
  if (cause < 0) return false;
  *why = membership_.state(cause) == Membership::State::kLost
             ? fmt::format("rank {} is lost: {}", cause, membership_.reason(cause))
             : fmt::format("rank {} aborted: {}", cause, membership_.reason(cause));
  return true;
}

std::optional<std::vector<std::byte>> RankStatus::take(const Key& key, std::string_view what) {
  const auto found = inbox_.find(key);
  if (found != inbox_.end()) {
    std::vector<std::byte> message = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) inbox_.erase(found);
    return message;
  }
  if (abort_reason_) throw Error(Errc::kAborted, "{}: aborted: {}", what, *abort_reason_);
  if (left_) throw Error(Errc::kInvalidUsage, "{}: this rank has left", what);
  std::string why;
  if (blocked_by_loss(std::get<0>(key), std::get<1>(key), &why)) {
    throw Error(Errc::kPeerLost, "{}: {}", what, why);
  }
  return std::nullopt;
}

std::optional<std::vector<std::byte>> RankStatus::try_receive(int peer, MessageChannel channel,
                                                              std::uint32_t tag,
                                                              std::string_view what) {
  const Lock lock(mutex_);
  return take({peer, channel, tag}, what);
}

std::vector<std::byte> RankStatus::receive(int peer, MessageChannel channel, std::uint32_t tag,
                                           Deadline deadline, std::string_view what) {
  Lock lock(mutex_);
  std::optional<std::vector<std::byte>> message;
  const auto arrived = [&]() RW_REQUIRES(mutex_) {
    message = take({peer, channel, tag}, what);
    return message.has_value();
  };
  const auto ask = [what] { check_interrupt(what); };
  if (!lock.wait_until(changed_, deadline, arrived, kInterruptPeriod, ask)) {
    throw Error(Errc::kTimeout, "{}: rank {} did not answer in time", what, peer);
  }
  return *std::move(message);
}

bool RankStatus::set_left() {
  {
    const Lock lock(mutex_);
    if (abort_reason_ || left_) return false;
    left_ = true;
  }
  changed_.notify_all();
  return true;
}

bool RankStatus::set_aborted(std::string_view reason) {
  {
    const Lock lock(mutex_);
    if (abort_reason_ || left_) return false;
    abort_reason_ = reason.substr(0, Notice::kMaxReasonBytes);
  }
  changed_.notify_all();
  return true;
}

void RankStatus::wait_closed() {
  Lock lock(mutex_);
  lock.wait(changed_, [this] { return phase_ == RankPhase::kClosed; });
}

void RankStatus::enter(RankPhase next) {
  RW_ASSERT(may_enter(phase_, next));
  {
    const Lock lock(mutex_);
    phase_ = next;
  }
  changed_.notify_all();
}

void RankStatus::fail_join(const Error& error) {
  const Lock lock(mutex_);
  join_error_ = error;
}

bool RankStatus::merge(const Notice& notice) {
  bool news = false;
  {
    const Lock lock(mutex_);
    news = membership_.merge(notice);
  }
  if (news) changed_.notify_all();
  return news;
}

bool RankStatus::set_suspected(int subject, bool suspected, Notice* notice) {
  const Lock lock(mutex_);
  return membership_.set_suspected(subject, suspected, notice);
}

}  // namespace ropewalk::bootstrap
