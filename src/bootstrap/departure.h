// How a rank leaves or aborts. Service thread only.
//
// A rank that leaves or aborts floods that, and closes its links only when every notice that it
// sent or passed on was acknowledged by the link's other end, and by one at least that does not
// leave itself, as far as is known (or all have left). So notices are never only with ranks that
// have ended, however many leave at once, and no survivor takes a leaver for dead. Only when all
// ranks that a notice has reached are killed with it is it lost; the others then find that nobody
// listens at the leaver's address, and take it for dead.
//
//   kStaying -> kDraining     leaves in order: messages in flight are sent before the notice
//   kStaying, kDraining -> kAnnounced     the notice is out, its acknowledgements are not all in
//
// After kAnnounced the rank closes. Each state has a time limit.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "bootstrap/gossip.h"
#include "bootstrap/peer_links.h"
#include "bootstrap/rank_context.h"
#include "bootstrap/reachability.h"
#include "bootstrap/ring.h"

namespace ropewalk::bootstrap {

class Departure {
 public:
  enum class State : std::uint8_t { kStaying, kDraining, kAnnounced };

  /// @return whether a rank in state `from` may enter state `to`
  static constexpr bool may_enter(State from, State to) noexcept { return from < to; }

  /// `close` ends the rank.
  Departure(RankContext& context, const Reachability& reachability, PeerLinks& links,
            const Ring& ring, Gossip& gossip, std::function<void()> close)
      : context_(context),
        reachability_(reachability),
        links_(links),
        ring_(ring),
        gossip_(gossip),
        close_(std::move(close)) {}

  /// Both do nothing in a rank that departs already. @pre the rank has joined
  void leave();
  void abort(const std::string& reason);

  /// A link can be used; messages that waited for it were sent.
  void on_link(int peer);
  /// Goes on, or closes the rank, as far as is possible now. Does nothing in a rank that stays.
  void proceed();

 private:
  void begin(std::chrono::nanoseconds limit);
  void enter(State next);
  void announce();

  RankContext& context_;
  const Reachability& reachability_;
  PeerLinks& links_;
  const Ring& ring_;
  Gossip& gossip_;
  std::function<void()> close_;
  State state_ = State::kStaying;
};

}  // namespace ropewalk::bootstrap
