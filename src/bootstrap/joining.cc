#include "bootstrap/joining.h"

#include <algorithm>
#include <utility>

#include "core/network_interfaces.h"
#include "core/socket.h"

namespace ropewalk::bootstrap {
namespace {

using Clock = Service::Clock;

std::int64_t milliseconds_until(Deadline deadline) {
  if (deadline == kNoDeadline) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return std::max<std::int64_t>(left, 0);
}

}  // namespace

void Joining::enter(State next) {
  RW_ASSERT(may_enter(state_, next));
  state_ = next;
}

void Joining::start() {
  own_record_ = own_record(context_.service.token());
  const Deadline deadline = context_.options.join_deadline;
  if (deadline != kNoDeadline) {
    context_.timers.at(deadline, [this] {
      if (state_ == State::kConnecting) fail(Errc::kTimeout, "the root service did not answer");
    });
    context_.timers.at(deadline + kRootSlack, [this] {
      fail(Errc::kTimeout, "the root service answered, but did not release the rank");
    });
  }
  connect_to_root();
}

void Joining::connect_to_root() {
  if (state_ == State::kDone) return;
  const RankOptions& options = context_.options;
  Claims claims;
  claims.purpose = Claims::Purpose::kJoin;
  claims.rank = options.rank;
  claims.size = options.size;
  Connection::Owner handlers;
  handlers.on_established = [this] { introduce(); };
  handlers.on_message = [this](std::vector<std::byte>& message) { on_root_message(message); };
  handlers.on_closed = [this](const Closing& closing) { on_root_closed(closing); };
  try {
    root_ = Connection::connect(context_.service, options.id.address,
                                Session::client(options.id.secret, options.id.service, claims),
                                Clock::now() + Listener::kProofTime, std::move(handlers));
  } catch (const Error& error) {
    fail(error.code(), error.what());
  }
}

void Joining::introduce() {
  enter(State::kIntroduced);
  try {
    if (context_.options.rank >= 0 && context_.options.rank < context_.options.size) {
      open_listener();
    }
  } catch (const Error& error) {
    fail(error.code(), error.what());
    return;
  }
  // With a rank or size that cannot be, the root answers with the failure that all get.
  WireWriter out;
  out.number(static_cast<std::uint8_t>(JoinMessage::kRecord));
  own_record_.write(out);
  out.number(milliseconds_until(context_.options.join_deadline));
  root_->send(out.bytes());
}

void Joining::open_listener() {
  // The address that reaches the root is one that the root's network reaches, unless a setting says
  // which interface to take.
  SocketAddress address = root_->local();
  const std::string& interfaces = context_.options.interfaces;
  if (!interfaces.empty()) address = best_interface(interfaces).address;
  address.set_port(0);
  links_.listen(listen_on(address, &own_record_.address));
}

void Joining::cannot_join(const std::string& reason) {
  if (state_ == State::kDone) return;
  report(reason);
  fail(Errc::kSystem, reason);
}

void Joining::report(const std::string& reason) {
  if (!root_) return;
  WireWriter out;
  out.number(static_cast<std::uint8_t>(JoinMessage::kCannot));
  out.text(reason);
  root_->send(out.bytes());
}

void Joining::on_root_message(const std::vector<std::byte>& message) {
  WireReader in(message);
  switch (static_cast<JoinMessage>(in.number<std::uint8_t>())) {
    case JoinMessage::kTable:
      if (state_ != State::kIntroduced) break;
      on_table(in);
      return;
    case JoinMessage::kGo:
      if (state_ != State::kLinked) break;
      on_go();
      return;
    case JoinMessage::kFailure: {
      const auto code = in.number<std::uint8_t>();
      const std::string text = in.text(4096);
      fail(code <= static_cast<std::uint8_t>(Errc::kInternal) ? static_cast<Errc>(code)
                                                              : Errc::kInternal,
           text);
      return;
    }
    case JoinMessage::kRecord:
    case JoinMessage::kReady:
    case JoinMessage::kCannot: break;
  }
  fail(Errc::kInternal, fmt::format("the root service sent an unexpected message of type {}",
                                    message.empty() ? -1 : std::to_integer<int>(message.front())));
}

void Joining::on_table(WireReader& in) {
  std::vector<RankRecord> table;
  const int size = context_.options.size;
  for (int rank = 0; rank < size; ++rank) table.push_back(RankRecord::read(in));
  context_.table = std::move(table);
  enter(State::kLinking);
  owner_.on_table();
  if (size > 1) links_.connect((context_.options.rank + 1) % size);
  on_link();
}

void Joining::on_link() {
  if (state_ != State::kLinking || !root_) return;
  const int rank = context_.options.rank;
  const int size = context_.options.size;
  if (size > 1) {
    bool to_next = false;
    bool from_previous = false;
    for (const PeerLink& link : links_.all()) {
      if (!link.established()) continue;
      to_next |= link.outgoing && link.peer == (rank + 1) % size;
      from_previous |= !link.outgoing && link.peer == (rank + size - 1) % size;
    }
    if (!to_next || !from_previous) return;
  }
  enter(State::kLinked);
  WireWriter out;
  out.number(static_cast<std::uint8_t>(JoinMessage::kReady));
  root_->send(out.bytes());
}

void Joining::on_go() {
  enter(State::kDone);
  context_.service.defer([gone = std::shared_ptr<Connection>(std::move(root_))] {});
  context_.timers.clear();
  context_.status.enter(RankPhase::kJoined);
  owner_.on_joined(std::exchange(early_losses_, {}));
}

void Joining::on_link_ended(int peer, const Closing& closing) {
  // The root notices the same end of that rank, and notifies all. If the root has released it
  // already, this rank reports it once it is released, too.
  if (context_.alive(peer)) early_losses_.emplace(peer, closing);
}

void Joining::on_cannot_connect(int peer, const Closing& closing) {
  if (closing.refused || closing.code == Errc::kInvalidUsage) {
    report(fmt::format("cannot connect to rank {} at {}: {}", peer,
                       context_.record(peer).address.text(), closing.reason));
    return;
  }
  context_.timers.after(std::chrono::milliseconds(5), [this, peer] {
    if (!links_.connecting_to(peer)) links_.connect(peer);
  });
}

void Joining::on_root_closed(const Closing& closing) {
  context_.service.defer([gone = std::shared_ptr<Connection>(std::move(root_))] {});
  if (state_ == State::kDone) return;
  if (closing.established) {
    fail(Errc::kPeerLost, fmt::format("the process that made the unique id ended while joining "
                                      "({})",
                                      closing.reason));
  } else if (closing.refused) {
    fail(Errc::kInvalidUsage,
         "nobody listens there: the unique id was used already, its time has passed, or the "
         "process that made it has ended");
  } else if (closing.code == Errc::kInvalidUsage) {
    fail(closing.code, closing.reason + ": the unique id is not valid any more");
  } else if (Clock::now() >= context_.options.join_deadline) {
    fail(Errc::kTimeout, closing.reason);
  } else {
    // Pushed out by a flood of strangers, or the network is not there yet. A little random, so that
    // many ranks do not come back together.
    const int shift = std::min(attempts_++, 6);
    context_.timers.after(
        std::chrono::milliseconds((2 << shift) + (context_.options.rank * 7) % 11),
        [this] { connect_to_root(); });
  }
}

void Joining::fail(Errc code, const std::string& text) {
  if (state_ == State::kDone) return;
  enter(State::kDone);
  owner_.on_join_failed(
      Error(code, fmt::format("joining as rank {} of {} through {}: {}", context_.options.rank,
                              context_.options.size, context_.options.id.address.text(), text)));
}

void Joining::close() {
  if (state_ != State::kDone) enter(State::kDone);
  if (!root_) return;
  root_->set_owner({});
  // Deferred: this may run within a call of it.
  context_.service.defer([gone = std::shared_ptr<Connection>(std::move(root_))] {});
}

}  // namespace ropewalk::bootstrap
