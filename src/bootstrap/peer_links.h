// The connections of one rank to others of its communicator. Service thread only.
//
// A link is an established connection between two ranks; either end may have opened it, and both
// use it. Each rank keeps one to the next living rank (ring.h); others are made when a message is
// sent. Notices go over all links of a rank (gossip.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/listener.h"
#include "bootstrap/monitor.h"
#include "bootstrap/rank_context.h"
#include "bootstrap/reachability.h"

namespace ropewalk::bootstrap {

/// First byte of each message on a link. kSync asks to be acknowledged, as kNews does.
enum class PeerFrame : std::uint8_t { kData = 1, kNews = 2, kHeartbeat = 3, kSync = 4 };

/// kConnecting -> kEstablished; a link that ends is removed.
struct PeerLink {
  enum class State : std::uint8_t { kConnecting, kEstablished };
  /// Notices, and frames that want an acknowledgement (gossip.h).
  struct Flow {
    std::vector<Notice> unsent;
    std::uint32_t sent = 0;          // frames
    std::uint32_t acknowledged = 0;  // of those sent
    std::uint32_t received = 0;
    std::uint32_t confirmed = 0;  // of those received, as acknowledged to the peer
  };

  PeerLink(int to, bool by_this_rank) : peer(to), outgoing(by_this_rank) {}
  [[nodiscard]] bool established() const noexcept { return state == State::kEstablished; }

  int peer;
  bool outgoing;  // this rank opened it
  State state = State::kConnecting;
  bool heard = false;         // something was received
  bool carried_data = false;  // from this rank, since the last kSync frame
  Flow flow;
  std::unique_ptr<Connection> connection;
};

class PeerLinks {
 public:
  /// Who deals with what happens on links.
  class Owner {
   public:
    virtual ~Owner() = default;
    /// `link` can be used; messages that waited for it were sent.
    virtual void on_established(PeerLink& link) = 0;
    /// @throws Error to end the link
    virtual void on_message(PeerLink& link, std::vector<std::byte>& message) = 0;
    /// A link to `peer` ended that both ends had used.
    virtual void on_ended(int peer, const Closing& closing) = 0;
    virtual void on_cannot_connect(int peer, const Closing& closing) = 0;
    /// This process lacks descriptors or memory for a link. May close the rank.
    virtual void on_no_resources(const std::string& reason) = 0;
  };

  PeerLinks(RankContext& context, const Reachability& reachability, Owner& owner)
      : context_(context), reachability_(reachability), owner_(owner) {}

  /// Takes connections of other ranks from now on.
  void listen(FileDescriptor socket);
  void connect(int peer);
  /// Sends over the link to `peer`, which is made first where there is none.
  void send(int peer, std::vector<std::byte> frame);
  /// Forgets what waits for a link to `peer`, or to anyone.
  void drop_queued(int peer) { queued_.erase(peer); }
  void drop_queued() { queued_.clear(); }
  [[nodiscard]] bool has_queued(int peer) const { return queued_.contains(peer); }
  /// Whether messages wait for a link to a living peer that may still be made.
  [[nodiscard]] bool awaits_link() const;

  /// The link to send on: established, the oldest. nullptr when there is none.
  [[nodiscard]] PeerLink* find(int peer);
  /// Whether there is a link to `peer`, or this rank is making one.
  [[nodiscard]] bool connecting_to(int peer) const;
  [[nodiscard]] std::list<PeerLink>& all() noexcept { return links_; }
  [[nodiscard]] const std::list<PeerLink>& all() const noexcept { return links_; }

  /// Ends all, without calling the owner any more.
  void close();

 private:
  using Position = std::list<PeerLink>::iterator;

  Connection::Owner handlers(Position link);
  void accept(std::unique_ptr<Connection> connection);
  void establish(Position link);
  void on_closed(Position link, const Closing& closing);

  RankContext& context_;
  const Reachability& reachability_;
  Owner& owner_;
  std::unique_ptr<Listener> listener_;
  std::list<PeerLink> links_;
  std::map<int, std::vector<std::vector<std::byte>>> queued_;  // frames, by peer without a link
};

/// Sends a frame that consists of its first byte.
void send_frame(PeerLink& link, PeerFrame frame);

}  // namespace ropewalk::bootstrap
