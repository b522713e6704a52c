#include "bootstrap/gossip.h"

#include <algorithm>

namespace ropewalk::bootstrap {

void Gossip::spread_lost(int peer, const std::string& reason) {
  spread({Notice::Kind::kLost, peer, context_.options.rank, 0, reason});
}

void Gossip::suspect(int peer, bool suspected) {
  const bool before = context_.membership().suspected(peer);
  Notice notice;
  if (!context_.status.set_suspected(peer, suspected, &notice)) return;
  for (PeerLink& link : links_.all()) {
    if (link.established()) link.flow.unsent.push_back(notice);
  }
  flush_soon();
  report_suspicion(peer, before);
}

void Gossip::report_suspicion(int rank, bool before) {
  const bool now = context_.membership().suspected(rank);
  if (now == before || rank == context_.options.rank || !context_.alive(rank)) return;
  owner_.on_suspicion(rank, now);
}

void Gossip::take(const Notice& notice, const PeerLink* from) {
  const bool suspicion =
      notice.kind == Notice::Kind::kSuspected || notice.kind == Notice::Kind::kCleared;
  const bool own = notice.subject == context_.options.rank;
  // Others may take this rank for dead, wrongly; it knows better, and they have decided.
  if (own && !suspicion && context_.phase() != RankPhase::kLeaving) return;
  const bool was_suspected = context_.membership().suspected(notice.subject);
  if (!context_.status.merge(notice)) return;
  for (PeerLink& link : links_.all()) {
    if (link.established() && &link != from) link.flow.unsent.push_back(notice);
  }
  handed_on_ = false;
  flush_soon();
  if (suspicion) {
    report_suspicion(notice.subject, was_suspected);
  } else if (!own) {
    owner_.on_final_notice(notice);
  }
}

void Gossip::on_link(PeerLink& link) {
  link.flow.unsent = context_.membership().snapshot();
  flush_soon();  // acknowledgements, too, may have waited for this link
}

void Gossip::on_news(PeerLink& link, WireReader& in) {
  link.flow.acknowledged = in.number<std::uint32_t>();
  const std::vector<Notice> notices = decode_notices(in.rest(), context_.options.size);
  if (notices.empty()) return;
  ++link.flow.received;
  flush_soon();
  for (const Notice& notice : notices) take(notice, &link);
}

void Gossip::on_sync(PeerLink& link) {
  ++link.flow.received;
  flush_soon();
}

void Gossip::sync(PeerLink& link) {
  if (!link.carried_data) return;
  link.carried_data = false;
  ++link.flow.sent;
  send_frame(link, PeerFrame::kSync);
}

void Gossip::flush_soon() {
  if (flush_planned_ || context_.closed()) return;
  flush_planned_ = true;
  context_.defer([this] { flush(); });
}

void Gossip::flush() {
  flush_planned_ = false;
  if (context_.closed()) return;
  for (PeerLink& link : links_.all()) {
    if (!link.established() || link.flow.unsent.empty()) continue;
    ++link.flow.sent;
    write(link);
  }
  // Only now: a rank that left may end with the acknowledgement, and this one be killed any time.
  for (PeerLink& link : links_.all()) {
    if (!link.established() || link.flow.confirmed == link.flow.received) continue;
    if (!can_pass_on(link)) continue;
    link.flow.confirmed = link.flow.received;
    write(link);
  }
  owner_.on_flushed();
}

void Gossip::write(PeerLink& link) {
  WireWriter out;
  out.number(static_cast<std::uint8_t>(PeerFrame::kNews));
  out.number(link.flow.confirmed);
  out.raw(encode_notices(link.flow.unsent));
  link.flow.unsent.clear();
  link.connection->send(out.bytes());
}

// Not while the ring is being repaired and no other link is there: only this rank then has the news
// from `from`. A rank that leaves forwards them before it ends.
bool Gossip::can_pass_on(const PeerLink& from) const {
  if (context_.phase() != RankPhase::kJoined) return true;
  const int next = ring_.successor();
  if (next < 0 || next == from.peer) return true;
  return std::any_of(links_.all().begin(), links_.all().end(), [&](const PeerLink& link) {
    return link.established() && link.peer != from.peer && context_.alive(link.peer);
  });
}

bool Gossip::acknowledged() {
  const bool all_gone = ring_.next_alive() < 0;
  bool all = true;
  for (const PeerLink& link : links_.all()) {
    if (!link.established() || context_.membership().suspected(link.peer)) continue;
    if (!link.flow.unsent.empty() || !link.connection->flushed() ||
        (!all_gone && link.flow.acknowledged != link.flow.sent)) {
      all = false;
    } else if (context_.alive(link.peer)) {
      // Not one that leaves as well: two leavers would hand their notices to each other, and end.
      handed_on_ = true;
    }
  }
  return all;
}

}  // namespace ropewalk::bootstrap
