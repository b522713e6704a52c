// The ring of watch connections: each rank keeps a link to the next living rank behind it.
//
// Service thread only.
#pragma once

#include "bootstrap/peer_links.h"
#include "bootstrap/rank_context.h"
#include "bootstrap/reachability.h"

namespace ropewalk::bootstrap {

class Ring {
 public:
  Ring(const RankContext& context, const Reachability& reachability, PeerLinks& links)
      : context_(context), reachability_(reachability), links_(links) {}

  /// Connects to the successor, if this rank has joined and has no link to it.
  void keep();
  /// The next rank that is alive and reachable; -1 when there is none.
  [[nodiscard]] int successor() const;
  /// The next and the previous rank that are alive; -1 where there is none.
  [[nodiscard]] int next_alive() const;
  [[nodiscard]] int previous_alive() const;

 private:
  const RankContext& context_;
  const Reachability& reachability_;
  PeerLinks& links_;
};

}  // namespace ropewalk::bootstrap
