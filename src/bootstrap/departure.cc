#include "bootstrap/departure.h"

#include <algorithm>

namespace ropewalk::bootstrap {

void Departure::enter(State next) {
  RW_ASSERT(may_enter(state_, next));
  state_ = next;
}

void Departure::begin(std::chrono::nanoseconds limit) {
  context_.status.enter(RankPhase::kLeaving);
  context_.timers.after(limit, close_);
}

void Departure::leave() {
  if (state_ != State::kStaying) return;
  begin(context_.options.peer_loss_time);
  // Notices travel on all links, and could overtake messages that are on one. So those first.
  enter(State::kDraining);
  for (PeerLink& link : links_.all()) {
    if (link.established()) Gossip::sync(link);
  }
  context_.timers.after(context_.options.peer_loss_time / 2, [this] {
    if (state_ == State::kDraining) announce();
  });
  proceed();
}

void Departure::abort(const std::string& reason) {
  if (state_ != State::kStaying) return;
  // Aborting is urgent for the caller, and the end of the process says as much.
  begin(context_.options.peer_loss_time / 2);
  links_.drop_queued();
  enter(State::kAnnounced);
  const int rank = context_.options.rank;
  gossip_.spread({Notice::Kind::kAborted, rank, rank, 0, reason});
  proceed();
}

void Departure::announce() {
  enter(State::kAnnounced);
  const int rank = context_.options.rank;
  gossip_.spread({Notice::Kind::kLeft, rank, rank, 0, {}});
}

void Departure::on_link(int peer) {
  if (state_ == State::kDraining) Gossip::sync(*links_.find(peer));
}

void Departure::proceed() {
  if (state_ == State::kStaying || context_.closed() || gossip_.flush_planned()) return;
  if (links_.awaits_link()) return;
  const bool acknowledged = gossip_.acknowledged();
  // A link that is being made may be the only one on which notices travel: wait for it, too.
  const auto& links = links_.all();
  if (std::any_of(links.begin(), links.end(), [this](const PeerLink& link) {
        return !link.established() && link.outgoing && context_.alive(link.peer);
      })) {
    return;
  }
  if (!acknowledged) return;
  if (state_ == State::kDraining) {
    announce();  // plans a flush, after which this is called again
    return;
  }
  if (!gossip_.handed_on()) {
    if (const int next = ring_.successor(); next >= 0) {
      if (!links_.connecting_to(next)) links_.connect(next);
      return;
    }
    if (reachability_.any_refused()) return;
  }
  close_();
}

}  // namespace ropewalk::bootstrap
