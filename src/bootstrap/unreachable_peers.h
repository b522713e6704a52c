// Peers that this rank could not connect to after joining: tried again, or lost in the end.
//
// Service thread only.
#pragma once

#include "bootstrap/gossip.h"
#include "bootstrap/peer_links.h"
#include "bootstrap/rank_context.h"
#include "bootstrap/reachability.h"
#include "bootstrap/ring.h"

namespace ropewalk::bootstrap {

class UnreachablePeers {
 public:
  UnreachablePeers(RankContext& context, Reachability& reachability, PeerLinks& links, Ring& ring,
                   Gossip& gossip)
      : context_(context),
        reachability_(reachability),
        links_(links),
        ring_(ring),
        gossip_(gossip) {}

  void on_cannot_connect(int peer, const Closing& closing);
  /// `peer` is lost, left or aborted: nobody tries to reach it any more.
  void forget(int peer);

 private:
  void retry(int peer);
  void on_grace_passed(int peer);

  RankContext& context_;
  Reachability& reachability_;
  PeerLinks& links_;
  Ring& ring_;
  Gossip& gossip_;
};

}  // namespace ropewalk::bootstrap
