#include "bootstrap/peer_links.h"

#include <algorithm>
#include <utility>

#include "core/log.h"

namespace ropewalk::bootstrap {

void send_frame(PeerLink& link, PeerFrame frame) {
  WireWriter out;
  out.number(static_cast<std::uint8_t>(frame));
  link.connection->send(out.bytes());
}

void PeerLinks::listen(FileDescriptor socket) {
  listener_ = std::make_unique<Listener>(
      context_.service, std::move(socket), context_.options.id.secret, context_.options.id.service,
      [this](std::unique_ptr<Connection> connection) { accept(std::move(connection)); },
      [this](const std::string& reason) { owner_.on_no_resources(reason); });
}

bool PeerLinks::connecting_to(int peer) const {
  return std::any_of(links_.begin(), links_.end(), [&](const PeerLink& link) {
    return link.peer == peer && (link.established() || link.outgoing);
  });
}

PeerLink* PeerLinks::find(int peer) {
  // The oldest: messages to a peer then all take the same link, and stay in order.
  for (PeerLink& link : links_) {
    if (link.peer == peer && link.established()) return &link;
  }
  return nullptr;
}

bool PeerLinks::awaits_link() const {
  return std::any_of(queued_.begin(), queued_.end(), [&](const auto& entry) {
    return context_.alive(entry.first) && reachability_.of(entry.first) != Reach::kRefused;
  });
}

Connection::Owner PeerLinks::handlers(Position link) {
  return {[this, link] { establish(link); },
          [this, link](std::vector<std::byte>& message) {
            link->heard = true;
            owner_.on_message(*link, message);
          },
          [this, link](const Closing& closing) { on_closed(link, closing); }};
}

void PeerLinks::connect(int peer) {
  if (context_.closed()) return;
  const RankOptions& options = context_.options;
  Claims claims;
  claims.purpose = Claims::Purpose::kLink;
  claims.rank = options.rank;
  claims.size = options.size;
  claims.target = peer;
  // While joining the root has the deadline. Later a stopped rank must not hold up the ring's
  // repair for long.
  const Service::Clock::duration limit = context_.phase() == RankPhase::kJoining
                                             ? Service::Clock::duration(Listener::kProofTime)
                                             : Service::Clock::duration(options.peer_loss_time) / 2;
  const Position link = links_.emplace(links_.end(), peer, true);
  try {
    link->connection =
        Connection::connect(context_.service, context_.record(peer).address,
                            Session::client(options.id.secret, options.id.service, claims),
                            Service::Clock::now() + limit, handlers(link));
  } catch (const Error& error) {
    // Deferred: callers do not expect the link's failure from within.
    context_.defer([this, link, reason = std::string(error.what())] {
      if (context_.closed()) return;  // and the link is gone
      owner_.on_no_resources(reason);
      if (!context_.closed()) on_closed(link, {false, false, Errc::kSystem, reason});
    });
  }
}

void PeerLinks::accept(std::unique_ptr<Connection> connection) {
  const Claims claims = connection->claims();
  const int rank = context_.options.rank;
  const int size = context_.options.size;
  if (claims.purpose != Claims::Purpose::kLink || claims.size != size || claims.target != rank ||
      claims.rank < 0 || claims.rank >= size) {
    log::warn("bootstrap: rank {} refuses a connection of rank {} of {} to rank {}", rank,
              claims.rank, claims.size, claims.target);
    context_.service.defer([gone = std::shared_ptr<Connection>(std::move(connection))] {});
    return;
  }
  const Position link = links_.emplace(links_.end(), claims.rank, false);
  link->connection = std::move(connection);
  link->connection->set_owner(handlers(link));
  establish(link);
}

void PeerLinks::establish(Position link) {
  RW_ASSERT(link->state == PeerLink::State::kConnecting);
  link->state = PeerLink::State::kEstablished;
  // Behind those that were there before: find() stays with the first.
  links_.splice(links_.end(), links_, link);
  // Acknowledges the other end's proof, so that it knows that this end has accepted the link.
  if (link->outgoing) send_frame(*link, PeerFrame::kHeartbeat);
  if (const auto queued = queued_.find(link->peer); queued != queued_.end()) {
    PeerLink& first = *find(link->peer);
    for (const std::vector<std::byte>& frame : queued->second) first.connection->send(frame);
    first.carried_data = true;
    queued_.erase(queued);
  }
  owner_.on_established(*link);
}

void PeerLinks::on_closed(Position link, const Closing& closing) {
  const int peer = link->peer;
  // One that never spoke may have left before it knew of the link, and announced that on others.
  const bool silent = !link->outgoing && !link->heard && context_.phase() != RankPhase::kJoining;
  const bool was_used = link->established() && !silent;
  context_.service.defer([gone = std::shared_ptr<Connection>(std::move(link->connection))] {});
  links_.erase(link);
  if (context_.closed()) return;
  if (was_used) {
    owner_.on_ended(peer, closing);
  } else {
    owner_.on_cannot_connect(peer, closing);
  }
}

void PeerLinks::send(int peer, std::vector<std::byte> frame) {
  if (context_.closed() || !context_.alive(peer)) return;
  if (PeerLink* link = find(peer)) {
    link->connection->send(frame);
    link->carried_data = true;
    return;
  }
  queued_[peer].push_back(std::move(frame));
  if (!connecting_to(peer) && reachability_.of(peer) == Reach::kReachable) connect(peer);
}

void PeerLinks::close() {
  queued_.clear();
  // At once: a rank that got its proof now would never learn that this one leaves, and would take
  // it for lost.
  if (listener_) listener_->stop();
  for (PeerLink& link : links_) {
    if (link.connection) link.connection->set_owner({});
  }
  // Deferred: this may run within a call of one of these.
  const auto links = std::make_shared<std::list<PeerLink>>();
  links->splice(links->end(), links_);
  context_.service.defer([links, listener = std::shared_ptr<Listener>(std::move(listener_))] {});
}

}  // namespace ropewalk::bootstrap
