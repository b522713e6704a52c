#include "bootstrap/bootstrap_rank.h"

#include <utility>

#include "bootstrap/bootstrap.h"
#include "core/log.h"

namespace ropewalk::bootstrap {
namespace {

std::string_view words(Notice::Kind kind) {
  switch (kind) {
    case Notice::Kind::kLost: return "is lost";
    case Notice::Kind::kLeft: return "left";
    case Notice::Kind::kAborted: return "aborted";
    case Notice::Kind::kSuspected: return "is suspected";
    case Notice::Kind::kCleared: return "answers again";
  }
  return "";
}

}  // namespace

BootstrapRank::BootstrapRank(Service& service, RankOptions options)
    : context_(service, std::move(options)),
      links_(context_, reachability_, *this),
      ring_(context_, reachability_, links_),
      gossip_(context_, links_, ring_, *this),
      detector_(context_, links_, ring_, gossip_),
      unreachable_(context_, reachability_, links_, ring_, gossip_),
      departure_(context_, reachability_, links_, ring_, gossip_, [this] { close(); }),
      joining_(context_, links_, *this) {
  context_.defer = [this](Service::Task task) {
    context_.service.defer([self = shared_from_this(), task = std::move(task)] { task(); });
  };
}

// ---- any thread ---------------------------------------------------------------------------------

void BootstrapRank::join() {
  context_.service.post([self = shared_from_this()] {
    self->context_.service.keep(self);
    self->joining_.start();
  });
  const Deadline deadline = context_.options.join_deadline;
  // The service thread has the deadlines; this one is for the case that it is held up.
  const Deadline last = deadline == kNoDeadline ? kNoDeadline : deadline + 2 * Joining::kRootSlack;
  if (!context_.status.wait_joined(last)) {
    context_.service.post([self = shared_from_this()] { self->close(); });
  }
  context_.status.check_joined();
}

void BootstrapRank::send(int peer, MessageChannel channel, std::uint32_t tag,
                         std::span<const std::byte> data) {
  if (peer < 0 || peer >= size()) {
    throw Error(Errc::kInvalidArgument, "bootstrap message to rank {} of {}", peer, size());
  }
  if (data.size() > Bootstrap::kMaxMessageBytes) {
    throw Error(Errc::kInvalidArgument, "bootstrap message of {} bytes to rank {}; at most {}",
                data.size(), peer, Bootstrap::kMaxMessageBytes);
  }
  context_.status.check_sendable(peer);
  if (peer == rank()) {
    context_.status.deliver(peer, channel, tag, {data.begin(), data.end()});
    return;
  }
  WireWriter out;
  out.number(static_cast<std::uint8_t>(PeerFrame::kData));
  out.number(static_cast<std::uint8_t>(channel));
  out.number(tag);
  out.raw(data);
  context_.service.post([self = shared_from_this(), peer, frame = out.take()]() mutable {
    self->links_.send(peer, std::move(frame));
  });
}

std::vector<std::byte> BootstrapRank::receive(int peer, MessageChannel channel, std::uint32_t tag,
                                              Deadline deadline, std::string_view what) {
  if (peer < 0 || peer >= size()) {
    throw Error(Errc::kInvalidArgument, "{} from rank {} of {}", what, peer, size());
  }
  return context_.status.receive(peer, channel, tag, deadline, what);
}

void BootstrapRank::leave() {
  if (!context_.status.set_left()) return;
  context_.service.post([self = shared_from_this()] {
    if (self->context_.closed()) return;
    if (self->joining()) {
      self->close();
    } else {
      self->departure_.leave();
    }
  });
}

void BootstrapRank::abort(std::string_view reason) {
  if (!context_.status.set_aborted(reason)) return;
  context_.service.post([self = shared_from_this(), text = std::string(reason)] {
    if (self->context_.closed()) return;
    if (self->joining()) {
      self->close();
    } else {
      self->departure_.abort(text);
    }
  });
}

// ---- links --------------------------------------------------------------------------------------

void BootstrapRank::on_established(PeerLink& link) {
  const int peer = link.peer;
  detector_.heard(peer);
  gossip_.on_link(link);
  departure_.on_link(peer);
  joining_.on_link();
}

void BootstrapRank::on_message(PeerLink& link, std::vector<std::byte>& message) {
  detector_.heard(link.peer);
  WireReader in(message);
  const auto type = in.number<std::uint8_t>();
  switch (static_cast<PeerFrame>(type)) {
    case PeerFrame::kHeartbeat: return;
    case PeerFrame::kSync: gossip_.on_sync(link); return;
    case PeerFrame::kData: {
      const auto channel = static_cast<MessageChannel>(in.number<std::uint8_t>());
      const auto tag = in.number<std::uint32_t>();
      const std::size_t header = message.size() - in.rest().size();
      message.erase(message.begin(), message.begin() + static_cast<std::ptrdiff_t>(header));
      context_.status.deliver(link.peer, channel, tag, std::move(message));
      message.clear();
      return;
    }
    case PeerFrame::kNews:
      gossip_.on_news(link, in);
      departure_.proceed();
      return;
  }
  throw Error(Errc::kPeerLost, "rank {} sent an unexpected message of type {}", link.peer, type);
}

void BootstrapRank::on_ended(int peer, const Closing& closing) {
  if (joining()) {
    joining_.on_link_ended(peer, closing);
    return;
  }
  if (context_.alive(peer)) {
    gossip_.spread_lost(peer,
                        fmt::format("its connection to rank {} ended: {}", rank(), closing.reason));
  }
  ring_.keep();
  departure_.proceed();
}

void BootstrapRank::on_cannot_connect(int peer, const Closing& closing) {
  if (joining()) {
    joining_.on_cannot_connect(peer, closing);
    return;
  }
  unreachable_.on_cannot_connect(peer, closing);
  ring_.keep();
  departure_.proceed();
}

void BootstrapRank::on_no_resources(const std::string& reason) {
  // While joining: waiting for a socket would hide that this process has none to give.
  if (joining()) joining_.cannot_join(reason);
}

// ---- notices ------------------------------------------------------------------------------------

void BootstrapRank::on_final_notice(const Notice& notice) {
  unreachable_.forget(notice.subject);
  log::info(log::kBootstrap, "bootstrap: rank {}: rank {} {}{}{}", rank(), notice.subject,
            words(notice.kind), notice.reason.empty() ? "" : ": ", notice.reason);
  // A rank that leaves does not ask any more.
  observers_.add(notice.kind, notice.subject, notice.reason,
                 context_.phase() != RankPhase::kLeaving);
  adapt_soon();
}

void BootstrapRank::on_suspicion(int peer, bool suspected) {
  observers_.add(suspected ? Notice::Kind::kSuspected : Notice::Kind::kCleared, peer, {},
                 context_.phase() != RankPhase::kLeaving);
}

// Deferred, so that iterators of the callers stay valid. Once for all current news.
void BootstrapRank::adapt_soon() {
  if (adapting_) return;
  adapting_ = true;
  context_.defer([this] {
    adapting_ = false;
    ring_.keep();
    departure_.proceed();
  });
}

// ---- beginning and end --------------------------------------------------------------------------

void BootstrapRank::on_joined(const std::map<int, Closing>& losses) {
  detector_.reset();
  for (const auto& [peer, closing] : losses) {
    if (context_.alive(peer)) gossip_.spread_lost(peer, closing.reason);
  }
  ring_.keep();
  detector_.start();
}

void BootstrapRank::on_join_failed(const Error& error) {
  context_.status.fail_join(error);
  close();
}

void BootstrapRank::close() {
  if (context_.closed()) return;
  context_.timers.clear();
  links_.close();
  joining_.close();
  context_.status.enter(RankPhase::kClosed);
  context_.service.drop(this);
}

}  // namespace ropewalk::bootstrap
