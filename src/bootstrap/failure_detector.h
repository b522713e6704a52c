// Heartbeats between ring neighbours, and what their silence means. Service thread only.
#pragma once

#include <set>
#include <vector>

#include "bootstrap/gossip.h"
#include "bootstrap/peer_links.h"
#include "bootstrap/rank_context.h"
#include "bootstrap/ring.h"

namespace ropewalk::bootstrap {

/// A neighbour that is silent for PEER_LOSS_TIME is suspected until it is heard again; one whose
/// process is known to have ended is lost after half of that.
class FailureDetector {
 public:
  FailureDetector(RankContext& context, PeerLinks& links, const Ring& ring, Gossip& gossip)
      : context_(context), links_(links), ring_(ring), gossip_(gossip) {}

  /// All ranks count as heard now. Before it heard() does nothing.
  void reset();
  /// Begins to send heartbeats and to watch.
  void start();
  /// Something came from `peer`.
  void heard(int peer);

 private:
  using Clock = Service::Clock;

  void on_tick();
  void watch(int peer, Clock::time_point now);

  RankContext& context_;
  PeerLinks& links_;
  const Ring& ring_;
  Gossip& gossip_;
  std::vector<Clock::time_point> heard_at_;
  std::set<int> neighbours_;  // at the last tick
  Clock::time_point last_tick_;
};

}  // namespace ropewalk::bootstrap
