// Notices about ranks, flooded over all links of a communicator, with acknowledgements.
//
// A rank acknowledges a frame of notices only when it has sent them on, and only when another link
// is there to send them on (can_pass_on): when it is killed next, the notices have left it already.
// Service thread only.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "bootstrap/monitor.h"
#include "bootstrap/peer_links.h"
#include "bootstrap/rank_context.h"
#include "bootstrap/ring.h"

namespace ropewalk::bootstrap {

class Gossip {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    /// Another rank was lost, left or aborted: `notice` was news.
    virtual void on_final_notice(const Notice& notice) = 0;
    /// A living rank is suspected by someone, or by nobody any more.
    virtual void on_suspicion(int rank, bool suspected) = 0;
    /// Notices and acknowledgements were written.
    virtual void on_flushed() = 0;
  };

  Gossip(RankContext& context, PeerLinks& links, const Ring& ring, Owner& owner)
      : context_(context), links_(links), ring_(ring), owner_(owner) {}

  /// Sends what this rank has found to all.
  void spread(const Notice& notice) { take(notice, nullptr); }
  /// `peer` was lost, for this reason.
  void spread_lost(int peer, const std::string& reason);
  /// This rank does not hear `peer`, or hears it again.
  void suspect(int peer, bool suspected);

  /// Sends all that is known over a new link.
  void on_link(PeerLink& link);
  /// The rest of a frame kNews.
  /// @throws Error kInvalidArgument
  void on_news(PeerLink& link, WireReader& in);
  void on_sync(PeerLink& link);
  /// Asks the link's other end to acknowledge the messages that were sent over it.
  static void sync(PeerLink& link);

  /// Writes notices and acknowledgements after the current events.
  void flush_soon();
  [[nodiscard]] bool flush_planned() const noexcept { return flush_planned_; }
  /// Whether all links to peers that answer have acknowledged all that was sent over them. When
  /// all other ranks are gone, too, they need the notices only to end themselves: sent is enough.
  bool acknowledged();
  /// A living rank has acknowledged all that is known here (as acknowledged() last found).
  [[nodiscard]] bool handed_on() const noexcept { return handed_on_; }

 private:
  void take(const Notice& notice, const PeerLink* from);
  void report_suspicion(int rank, bool before);
  void flush();
  static void write(PeerLink& link);
  [[nodiscard]] bool can_pass_on(const PeerLink& from) const;

  RankContext& context_;
  PeerLinks& links_;
  const Ring& ring_;
  Owner& owner_;
  bool flush_planned_ = false;
  bool handed_on_ = false;
};

}  // namespace ropewalk::bootstrap
