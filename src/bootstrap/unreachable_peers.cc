#include "bootstrap/unreachable_peers.h"

namespace ropewalk::bootstrap {

void UnreachablePeers::on_cannot_connect(int peer, const Closing& closing) {
  if (!context_.alive(peer)) {
    links_.drop_queued(peer);
    return;
  }
  gossip_.flush_soon();  // acknowledgements may have waited for a link to it
  const auto peer_loss_time = context_.options.peer_loss_time;
  if (closing.refused || closing.code == Errc::kInvalidUsage ||
      process_ended(context_.record(peer))) {
    // Nobody listens there any more. If it left in order, notices of that are in transit, for it
    // stayed until they were handed on.
    if (!reachability_.enter(peer, Reach::kRefused)) return;
    context_.timers.after(peer_loss_time / 4, [this, peer] { on_grace_passed(peer); });
    return;
  }
  // No answer: the process is stopped, or the network is down. Closed: dropped because of too many
  // connections, or about to end, which the next attempt shows.
  const bool no_answer = closing.code == Errc::kTimeout;
  if (no_answer) gossip_.suspect(peer, true);
  if (!reachability_.enter(peer, Reach::kRetrying)) return;
  context_.timers.after(peer_loss_time / (no_answer ? 2 : 32), [this, peer] { retry(peer); });
}

void UnreachablePeers::forget(int peer) {
  links_.drop_queued(peer);
  reachability_.enter(peer, Reach::kReachable);
}

void UnreachablePeers::retry(int peer) {
  if (reachability_.of(peer) != Reach::kRetrying) return;
  reachability_.enter(peer, Reach::kReachable);
  if (!context_.alive(peer)) return;
  ring_.keep();
  if (links_.has_queued(peer) && !links_.connecting_to(peer)) links_.connect(peer);
}

void UnreachablePeers::on_grace_passed(int peer) {
  if (!reachability_.enter(peer, Reach::kReachable)) return;
  if (!context_.alive(peer)) return;
  gossip_.spread_lost(peer,
                      fmt::format("rank {} cannot connect to it: nobody listens at {} any "
                                  "more",
                                  context_.options.rank, context_.record(peer).address.text()));
  ring_.keep();
}

}  // namespace ropewalk::bootstrap
