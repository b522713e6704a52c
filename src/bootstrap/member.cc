#include "bootstrap/member.h"

#include <algorithm>
#include <cerrno>

#include "core/interrupt.h"
#include "core/log.h"
#include "core/units.h"

namespace ropewalk::bootstrap {
namespace {

using Clock = Service::Clock;

// kSync asks to be acknowledged, as news are.
enum class Frame : std::uint8_t { kData = 1, kNews = 2, kHeartbeat = 3, kSync = 4 };

// Beyond the caller's deadline the root still gets this long to tell who is missing.
constexpr std::chrono::seconds kRootSlack{2};
// Heartbeats in PEER_LOSS_TIME. Four: one or two late ones on a loaded machine raise no suspicion.
constexpr int kBeats = 4;

std::int64_t milliseconds_until(Deadline deadline) {
  if (deadline == kNoDeadline) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return std::max<std::int64_t>(left, 0);
}

Deadline later(Deadline deadline, Clock::duration more) {
  return deadline == kNoDeadline ? kNoDeadline : deadline + more;
}

}  // namespace

Member::Member(Service& service, Options options)
    : service_(service),
      options_(std::move(options)),
      membership_(options_.rank, options_.size > kMaxRanks ? 1 : std::max(options_.size, 1)) {}

Member::~Member() = default;

void Member::timer(Clock::duration delay, std::function<void()> task) {
  timer_at(Clock::now() + delay, std::move(task));
}

void Member::timer_at(Clock::time_point when, std::function<void()> task) {
  const auto key = std::make_shared<Service::TimerKey>();
  *key = service_.at(when, [this, key, task = std::move(task)] {
    timers_.erase(*key);
    task();
  });
  timers_.insert(*key);
}

// ---- joining
// -------------------------------------------------------------------------------------

void Member::join() {
  service_.post([self = shared_from_this()] {
    self->service_.keep(self);
    self->start();
  });
  Lock lock(mutex_);
  const Deadline last = later(options_.join_deadline, 2 * kRootSlack);
  const auto done = [this]()
                        RW_REQUIRES(mutex_) { return phase_ != Phase::kJoining || join_failed_; };
  bool given_up = false;
  const auto ended = [&]() RW_REQUIRES(mutex_) { return given_up || done(); };
  const auto ask = [&given_up] { given_up = interrupted(); };
  // The service thread has the deadlines; this one is for the case that it is held up.
  const bool in_time = lock.wait_until(changed_, last, ended, kInterruptPeriod, ask);
  if (!in_time || given_up) {
    join_failed_ = true;
    join_error_ = given_up ? Errc::kInterrupted : Errc::kTimeout;
    join_text_ = given_up ? fmt::format("rank {} was interrupted by its program while it joined",
                                        options_.rank)
                          : "the service thread did not answer";
    service_.post([self = shared_from_this()] { self->close_all(); });
  }
  if (join_failed_) throw Error(join_error_, join_text_);
}

void Member::start() {
  own_record_ = own_record(service_.token());
  if (options_.join_deadline != kNoDeadline) {
    timer_at(options_.join_deadline, [this] {
      if (!root_proven_) fail_join(Errc::kTimeout, "the root service did not answer");
    });
    timer_at(options_.join_deadline + kRootSlack, [this] {
      fail_join(Errc::kTimeout, "the root service answered, but did not let the rank go");
    });
  }
  connect_to_root();
}

void Member::connect_to_root() {
  if (closed_) return;
  Claims claims;
  claims.purpose = Claims::Purpose::kJoin;
  claims.rank = options_.rank;
  claims.size = options_.size;
  Connection::Owner owner;
  owner.on_established = [this] { on_root_established(); };
  owner.on_message = [this](std::vector<std::byte>& message) { on_root_message(message); };
  owner.on_closed = [this](const Closing& closing) { on_root_closed(closing); };
  try {
    root_ = Connection::connect(service_, options_.id.address,
                                Session::client(options_.id.secret, options_.id.service, claims),
                                Clock::now() + Listener::kProofTime, std::move(owner));
  } catch (const Error& error) {
    fail_join(error.code(), error.what());
  }
}

void Member::on_root_established() {
  root_proven_ = true;
  try {
    if (options_.rank >= 0 && options_.rank < options_.size) open_listener();
  } catch (const Error& error) {
    fail_join(error.code(), error.what());
    return;
  }
  // With a rank or size that cannot be, the root answers with the failure that all get.
  WireWriter out;
  out.number(static_cast<std::uint8_t>(JoinMessage::kRecord));
  own_record_.write(out);
  out.number(milliseconds_until(options_.join_deadline));
  root_->send(out.bytes());
}

void Member::open_listener() {
  // The address that reaches the root is one that the root's network reaches, unless a setting says
  // which interface to take.
  SocketAddress address = root_->local();
  if (!options_.interfaces.empty()) {
    const auto chosen = choose_interfaces(interface_addresses(), options_.interfaces);
    if (chosen.empty()) {
      throw Error(Errc::kSystem,
                  "rank {}: no network interface that is up matches ROPEWALK_SOCKET_IFNAME \"{}\"",
                  options_.rank, options_.interfaces);
    }
    address = chosen.front().address;
  }
  address.set_port(0);
  Socket socket = listen_on(address, &own_record_.address);
  listener_ = std::make_unique<Listener>(
      service_, std::move(socket), options_.id.secret, options_.id.service,
      [this](std::unique_ptr<Connection> connection) { on_accepted(std::move(connection)); },
      [this](const std::string& reason) { cannot_join(reason); });
}

void Member::cannot_join(const std::string& reason) {
  if (phase_ != Phase::kJoining || closed_) return;
  tell_root(reason);
  fail_join(Errc::kSystem, reason);
}

void Member::tell_root(const std::string& reason) {
  WireWriter out;
  out.number(static_cast<std::uint8_t>(JoinMessage::kCannot));
  out.text(reason);
  if (root_) root_->send(out.bytes());
}

void Member::on_root_message(const std::vector<std::byte>& message) {
  WireReader in(message);
  switch (static_cast<JoinMessage>(in.number<std::uint8_t>())) {
    case JoinMessage::kTable: {
      std::vector<RankRecord> table;
      for (int rank = 0; rank < options_.size; ++rank) table.push_back(RankRecord::read(in));
      table_ = std::move(table);
      heard_at_.assign(table_.size(), Clock::now());
      if (options_.size > 1) connect_peer((options_.rank + 1) % options_.size);
      check_linked();
      return;
    }
    case JoinMessage::kGo: on_go(); return;
    case JoinMessage::kFailure: {
      const auto code = in.number<std::uint8_t>();
      const std::string text = in.text(4096);
      fail_join(code <= static_cast<std::uint8_t>(Errc::kInternal) ? static_cast<Errc>(code)
                                                                   : Errc::kInternal,
                text);
      return;
    }
    case JoinMessage::kRecord:
    case JoinMessage::kReady:
    case JoinMessage::kCannot: break;
  }
  fail_join(Errc::kInternal, "the root service sent an unknown message");
}

void Member::on_root_closed(const Closing& closing) {
  service_.defer([gone = std::shared_ptr<Connection>(std::move(root_))] {});
  if (phase_ != Phase::kJoining || closed_) return;
  if (closing.established) {
    fail_join(Errc::kPeerLost,
              fmt::format("the process that made the unique id ended while joining ({})",
                          closing.reason));
  } else if (closing.refused) {
    fail_join(Errc::kInvalidUsage,
              "nobody listens there: the unique id was used already, its time has passed, or the "
              "process that made it has ended");
  } else if (closing.code == Errc::kInvalidUsage) {
    fail_join(closing.code, closing.reason + ": the unique id is not valid any more");
  } else if (Clock::now() >= options_.join_deadline) {
    fail_join(Errc::kTimeout, closing.reason);
  } else {
    // Pushed out by a flood of strangers, or the network is not there yet. A little random, so that
    // many ranks do not come back together.
    const int shift = std::min(root_attempts_++, 6);
    timer(std::chrono::milliseconds((2 << shift) + (options_.rank * 7) % 11),
          [this] { connect_to_root(); });
  }
}

void Member::fail_join(Errc code, const std::string& text) {
  if (phase_ != Phase::kJoining || closed_) return;
  {
    const Lock lock(mutex_);
    join_failed_ = true;
    join_error_ = code;
    join_text_ = fmt::format("joining as rank {} of {} through {}: {}", options_.rank,
                             options_.size, options_.id.address.text(), text);
  }
  close_all();
}

void Member::check_linked() {
  if (phase_ != Phase::kJoining || table_.empty() || ready_sent_ || !root_) return;
  if (options_.size > 1) {
    const int next = (options_.rank + 1) % options_.size;
    const int previous = (options_.rank + options_.size - 1) % options_.size;
    bool to_next = false;
    bool from_previous = false;
    for (const Link& link : links_) {
      if (!link.established) continue;
      to_next |= link.outgoing && link.peer == next;
      from_previous |= !link.outgoing && link.peer == previous;
    }
    if (!to_next || !from_previous) return;
  }
  ready_sent_ = true;
  WireWriter out;
  out.number(static_cast<std::uint8_t>(JoinMessage::kReady));
  root_->send(out.bytes());
}

void Member::on_go() {
  if (phase_ != Phase::kJoining || !ready_sent_) {
    fail_join(Errc::kInternal, "the root service let the rank go too early");
    return;
  }
  service_.defer([gone = std::shared_ptr<Connection>(std::move(root_))] {});
  for (const Service::TimerKey& key : timers_) service_.cancel(key);
  timers_.clear();
  {
    const Lock lock(mutex_);
    phase_ = Phase::kJoined;
  }
  changed_.notify_all();
  const auto now = Clock::now();
  heard_at_.assign(table_.size(), now);
  last_tick_ = now;
  const std::map<int, Closing> losses = std::move(early_losses_);
  for (const auto& [peer, closing] : losses) {
    if (state_of(peer) == Membership::State::kAlive) {
      spread({Notice::Kind::kLost, peer, options_.rank, 0, closing.reason});
    }
  }
  keep_ring();
  if (options_.size > 1) on_tick();
}

// ---- links
// ---------------------------------------------------------------------------------------

bool Member::connecting_to(int peer) {
  return std::any_of(links_.begin(), links_.end(), [&](const Link& link) {
    return link.peer == peer && (link.established || link.outgoing);
  });
}

Member::Link* Member::find_link(int peer) {
  // The oldest: messages to a peer then all take the same link, and stay in order.
  for (Link& link : links_) {
    if (link.peer == peer && link.established) return &link;
  }
  return nullptr;
}

Member::LinkPlace Member::add_link(int peer, bool outgoing) {
  links_.emplace_back();
  const LinkPlace link = std::prev(links_.end());
  link->peer = peer;
  link->outgoing = outgoing;
  return link;
}

Connection::Owner Member::link_owner(LinkPlace link) {
  return {[this, link] { on_link_established(link); },
          [this, link](std::vector<std::byte>& message) { on_link_message(link, message); },
          [this, link](const Closing& closing) { on_link_closed(link, closing); }};
}

void Member::connect_peer(int peer) {
  if (closed_) return;
  Claims claims;
  claims.purpose = Claims::Purpose::kLink;
  claims.rank = options_.rank;
  claims.size = options_.size;
  claims.target = peer;
  // While joining the root has the deadline. Later a stopped rank must not hold up the ring's
  // repair for long.
  const Clock::duration limit = phase_ == Phase::kJoining
                                    ? Clock::duration(Listener::kProofTime)
                                    : Clock::duration(options_.peer_loss_time) / 2;
  const LinkPlace link = add_link(peer, true);
  try {
    link->connection =
        Connection::connect(service_, table_[static_cast<std::size_t>(peer)].address,
                            Session::client(options_.id.secret, options_.id.service, claims),
                            Clock::now() + limit, link_owner(link));
  } catch (const Error& error) {
    // Deferred: callers do not expect the link's failure from within.
    // While joining: this process has no socket to give, and waiting for one would hide that.
    service_.defer([self = shared_from_this(), link, reason = std::string(error.what())] {
      self->cannot_join(reason);
      if (!self->closed_) self->on_link_closed(link, {false, false, Errc::kSystem, reason});
    });
  }
}

void Member::on_accepted(std::unique_ptr<Connection> connection) {
  const Claims claims = connection->claims();
  if (claims.purpose != Claims::Purpose::kLink || claims.size != options_.size ||
      claims.target != options_.rank || claims.rank < 0 || claims.rank >= options_.size) {
    log::warn("bootstrap: rank {} refuses a connection of rank {} of {} to rank {}", options_.rank,
              claims.rank, claims.size, claims.target);
    service_.defer([gone = std::shared_ptr<Connection>(std::move(connection))] {});
    return;
  }
  const LinkPlace link = add_link(claims.rank, false);
  link->connection = std::move(connection);
  link->connection->set_owner(link_owner(link));
  on_link_established(link);
}

void Member::on_link_established(LinkPlace link) {
  link->established = true;
  // Behind those that were there before: find_link stays with the first.
  links_.splice(links_.end(), links_, link);
  const int peer = link->peer;
  heard(peer);
  if (link->outgoing) {
    // Tells the other end that this one has its proof, and so knows of the link.
    WireWriter out;
    out.number(static_cast<std::uint8_t>(Frame::kHeartbeat));
    link->connection->send(out.bytes());
  }
  link->news = membership_.snapshot();
  flush_soon();  // acknowledgements, too, may have waited for this link
  const auto waiting = waiting_.find(peer);
  if (waiting != waiting_.end()) {
    Link& first = *find_link(peer);
    for (const std::vector<std::byte>& frame : waiting->second) first.connection->send(frame);
    first.carried_data = true;
    if (draining_) sync(first);
    waiting_.erase(waiting);
  }
  check_linked();
}

void Member::on_link_message(LinkPlace link, std::vector<std::byte>& message) {
  heard(link->peer);
  link->spoken = true;
  WireReader in(message);
  switch (static_cast<Frame>(in.number<std::uint8_t>())) {
    case Frame::kHeartbeat: return;
    case Frame::kSync:
      ++link->frames_received;
      flush_soon();
      return;
    case Frame::kData: {
      const auto channel = static_cast<Channel>(in.number<std::uint8_t>());
      const auto tag = in.number<std::uint32_t>();
      const std::size_t header = message.size() - in.rest().size();
      message.erase(message.begin(), message.begin() + static_cast<std::ptrdiff_t>(header));
      {
        const Lock lock(mutex_);
        inbox_[{link->peer, channel, tag}].push_back(std::move(message));
      }
      changed_.notify_all();
      message.clear();
      return;
    }
    case Frame::kNews: {
      link->frames_acknowledged = in.number<std::uint32_t>();
      const std::vector<Notice> notices = decode_notices(in.rest(), options_.size);
      if (!notices.empty()) {
        ++link->frames_received;
        flush_soon();
        for (const Notice& notice : notices) take_news(notice, &*link);
      }
      check_left();
      return;
    }
  }
  throw Error(Errc::kPeerLost, "rank {} sent an unknown message", link->peer);
}

void Member::on_link_closed(LinkPlace link, const Closing& closing) {
  const int peer = link->peer;
  // One that never spoke may have left before it knew of the link, and said so on others only.
  const bool silent = !link->outgoing && !link->spoken && phase_ != Phase::kJoining;
  const bool established = link->established && !silent;
  service_.defer([gone = std::shared_ptr<Connection>(std::move(link->connection))] {});
  links_.erase(link);
  if (closed_) return;
  if (!established) {
    on_cannot_connect(peer, closing);
    return;
  }
  if (phase_ == Phase::kJoining) {
    // The root sees the same end of that rank, and tells all. If the root has let it go already,
    // this rank reports it once it is let go, too.
    if (state_of(peer) == Membership::State::kAlive) early_losses_.emplace(peer, closing);
    return;
  }
  if (state_of(peer) == Membership::State::kAlive) {
    spread({Notice::Kind::kLost, peer, options_.rank, 0,
            fmt::format("its connection to rank {} ended: {}", options_.rank, closing.reason)});
  }
  keep_ring();
  check_left();
}

void Member::on_cannot_connect(int peer, const Closing& closing) {
  if (phase_ == Phase::kJoining) {
    if (closing.refused || closing.code == Errc::kInvalidUsage) {
      tell_root(fmt::format("cannot connect to rank {} at {}: {}", peer, address(peer).text(),
                            closing.reason));
    } else {
      timer(std::chrono::milliseconds(5), [this, peer] {
        if (!connecting_to(peer)) connect_peer(peer);
      });
    }
    return;
  }
  if (state_of(peer) != Membership::State::kAlive) {
    waiting_.erase(peer);
    keep_ring();
    check_left();
    return;
  }
  unreachable_.insert(peer);
  flush_soon();  // acknowledgements may have waited for a link to it
  if (closing.refused || closing.code == Errc::kInvalidUsage ||
      process_ended(table_[static_cast<std::size_t>(peer)])) {
    // Nobody listens there any more. If it left in order the news of that are on their way, for it
    // stayed until they were handed on.
    if (!gone_.contains(peer)) {
      const auto key =
          service_.after(options_.peer_loss_time / 4, [this, peer] { on_gone_grace(peer); });
      gone_.emplace(peer, key);
    }
  } else {
    // Silent: stopped, or the network is away. Closed: pushed out by a flood, or about to end,
    // which the next attempt tells.
    const bool silent = closing.code == Errc::kTimeout;
    if (silent) suspect(peer, true);
    timer(options_.peer_loss_time / (silent ? 2 : 32), [this, peer] {
      unreachable_.erase(peer);
      if (state_of(peer) != Membership::State::kAlive) return;
      keep_ring();
      if (waiting_.contains(peer) && !connecting_to(peer)) connect_peer(peer);
    });
  }
  keep_ring();
  check_left();
}

void Member::on_gone_grace(int peer) {
  gone_.erase(peer);
  unreachable_.erase(peer);
  if (state_of(peer) != Membership::State::kAlive) return;
  spread({Notice::Kind::kLost, peer, options_.rank, 0,
          fmt::format("rank {} cannot connect to it: nobody listens at {} any more", options_.rank,
                      address(peer).text())});
  keep_ring();
}

void Member::send_to(int peer, std::vector<std::byte> frame) {
  if (closed_ || state_of(peer) != Membership::State::kAlive) return;
  if (Link* link = find_link(peer)) {
    link->connection->send(frame);
    link->carried_data = true;
    return;
  }
  waiting_[peer].push_back(std::move(frame));
  if (!connecting_to(peer) && !unreachable_.contains(peer)) connect_peer(peer);
}

// ---- watching
// ------------------------------------------------------------------------------------

bool Member::same_process(int peer) const {
  return table_[static_cast<std::size_t>(peer)].service == service_.token();
}

int Member::previous_alive() const {
  for (int step = 1; step < options_.size; ++step) {
    const int candidate = (options_.rank + options_.size - step) % options_.size;
    if (state_of(candidate) == Membership::State::kAlive) return candidate;
  }
  return -1;
}

void Member::heard(int peer) {
  if (heard_at_.empty()) return;
  heard_at_[static_cast<std::size_t>(peer)] = Clock::now();
  suspect(peer, false);
}

void Member::suspect(int peer, bool suspected) {
  const bool before = membership_.suspected(peer);
  Notice notice;
  bool changed = false;
  {
    const Lock lock(mutex_);
    changed = membership_.set_suspected(peer, suspected, &notice);
  }
  if (!changed) return;
  for (Link& link : links_) {
    if (link.established) link.news.push_back(notice);
  }
  flush_soon();
  tell_suspicion(peer, before);
}

void Member::tell_suspicion(int rank, bool before) {
  const bool now = membership_.suspected(rank);
  if (now == before || rank == options_.rank) return;
  if (state_of(rank) != Membership::State::kAlive) return;
  const Lock watching(watch_mutex_);
  history_.push_back({now ? Notice::Kind::kSuspected : Notice::Kind::kCleared, rank, {}});
  if (observer_ != nullptr && phase_ != Phase::kLeaving) observer_->on_suspect(rank, now);
}

void Member::spread(const Notice& notice) { take_news(notice, nullptr); }

void Member::take_news(const Notice& notice, const Link* from) {
  // Others may take this rank for dead, wrongly; it knows better, and they have decided.
  const bool suspicion =
      notice.kind == Notice::Kind::kSuspected || notice.kind == Notice::Kind::kCleared;
  if (notice.subject == options_.rank && !suspicion && phase_ != Phase::kLeaving) return;
  const bool was_suspected = membership_.suspected(notice.subject);
  {
    const Lock lock(mutex_);
    if (!membership_.merge(notice)) return;
  }
  for (Link& link : links_) {
    if (link.established && &link != from) link.news.push_back(notice);
  }
  handed_on_ = false;
  flush_soon();
  if (suspicion) {
    tell_suspicion(notice.subject, was_suspected);
    return;
  }
  if (notice.subject == options_.rank) return;
  waiting_.erase(notice.subject);
  if (const auto gone = gone_.find(notice.subject); gone != gone_.end()) {
    service_.cancel(gone->second);
    gone_.erase(gone);
  }
  changed_.notify_all();
  log::info(log::kBootstrap, "bootstrap: rank {}: rank {} {}{}{}", options_.rank, notice.subject,
            notice.kind == Notice::Kind::kLost   ? "is lost"
            : notice.kind == Notice::Kind::kLeft ? "left"
                                                 : "aborted",
            notice.reason.empty() ? "" : ": ", notice.reason);
  {
    const Lock watching(watch_mutex_);
    history_.push_back({notice.kind, notice.subject, notice.reason});
    // Who leaves does not ask any more.
    if (observer_ != nullptr && phase_ != Phase::kLeaving) {
      switch (notice.kind) {
        case Notice::Kind::kLost: observer_->on_lost(notice.subject, notice.reason); break;
        case Notice::Kind::kLeft: observer_->on_left(notice.subject); break;
        case Notice::Kind::kAborted: observer_->on_abort(notice.subject, notice.reason); break;
        case Notice::Kind::kSuspected:
        case Notice::Kind::kCleared: break;
      }
    }
  }
  // Deferred: `from` and the callers' iterators stay valid. Once for all news at hand.
  if (settle_planned_) return;
  settle_planned_ = true;
  service_.defer([self = shared_from_this()] {
    self->settle_planned_ = false;
    self->keep_ring();
    self->check_left();
  });
}

void Member::flush_soon() {
  if (flush_planned_ || closed_) return;
  flush_planned_ = true;
  service_.defer([self = shared_from_this()] { self->flush_news(); });
}

void Member::flush_news() {
  flush_planned_ = false;
  if (closed_) return;
  for (Link& link : links_) {
    if (!link.established || link.news.empty()) continue;
    ++link.frames_sent;
    send_news(link);
  }
  // Only now: who left may end with the acknowledgement, and this rank be killed at any time.
  for (Link& link : links_) {
    if (!link.established || link.frames_confirmed == link.frames_received) continue;
    if (!can_pass_on(link)) continue;
    link.frames_confirmed = link.frames_received;
    send_news(link);
  }
  check_left();
}

void Member::send_news(Link& link) {
  WireWriter out;
  out.number(static_cast<std::uint8_t>(Frame::kNews));
  out.number(link.frames_confirmed);
  out.raw(encode_notices(link.news));
  link.news.clear();
  link.connection->send(out.bytes());
}

// Not while the ring is being repaired and no other link is there: what came over `from` is then
// with this rank alone. Who leaves hands it on before it goes.
bool Member::can_pass_on(const Link& from) const {
  if (phase_ != Phase::kJoined) return true;
  const int next = successor();
  if (next < 0 || next == from.peer) return true;
  return std::any_of(links_.begin(), links_.end(), [&](const Link& link) {
    return link.established && link.peer != from.peer &&
           state_of(link.peer) == Membership::State::kAlive;
  });
}

void Member::keep_ring() {
  if (phase_ != Phase::kJoined || closed_) return;
  const int next = successor();
  if (next >= 0 && !connecting_to(next)) connect_peer(next);
}

int Member::successor() const {
  int candidate = options_.rank;
  for (int step = 0; step < options_.size; ++step) {
    candidate = membership_.next_alive(candidate);
    if (candidate < 0 || !unreachable_.contains(candidate)) return candidate;
  }
  return -1;
}

void Member::on_tick() {
  const auto now = Clock::now();
  const Clock::duration period = Clock::duration(options_.peer_loss_time) / kBeats;
  if (now - last_tick_ > 2 * period) {
    // This process was stopped or starved, and could not hear.
    std::fill(heard_at_.begin(), heard_at_.end(), now);
  }
  last_tick_ = now;
  std::set<int> neighbours = {membership_.next_alive(options_.rank), previous_alive()};
  neighbours.erase(-1);
  for (const int peer : neighbours) {
    // Ranks that were not neighbours had no reason to speak.
    if (!neighbours_.contains(peer)) heard_at_[static_cast<std::size_t>(peer)] = now;
  }
  neighbours_ = neighbours;
  for (const int peer : neighbours) {
    // Ranks of one process stop and go together.
    if (same_process(peer)) continue;
    const auto silence = now - heard_at_[static_cast<std::size_t>(peer)];
    if (silence > options_.peer_loss_time / 2 &&
        process_ended(table_[static_cast<std::size_t>(peer)])) {
      // A child of it holds its sockets open.
      spread({Notice::Kind::kLost, peer, options_.rank, 0,
              fmt::format("its process {} has ended", table_[static_cast<std::size_t>(peer)].pid)});
      continue;
    }
    if (silence > options_.peer_loss_time) suspect(peer, true);
    if (Link* link = find_link(peer)) {
      // A peer that does not read must not fill this process' memory.
      if (link->connection->flushed()) {
        WireWriter out;
        out.number(static_cast<std::uint8_t>(Frame::kHeartbeat));
        link->connection->send(out.bytes());
      }
    }
  }
  timer(period, [this] { on_tick(); });
}

// ---- the end
// -------------------------------------------------------------------------------------

void Member::begin_leaving(Notice::Kind kind, const std::string& reason) {
  if (closed_ || phase_ == Phase::kLeaving) return;
  if (phase_ == Phase::kJoining) {
    close_all();
    return;
  }
  {
    const Lock lock(mutex_);
    phase_ = Phase::kLeaving;
  }
  // Giving up is urgent for the caller, and says so by itself if the process ends.
  timer(kind == Notice::Kind::kLeft ? options_.peer_loss_time : options_.peer_loss_time / 2,
        [this] { close_all(); });
  if (kind == Notice::Kind::kAborted) {
    waiting_.clear();
    spread({kind, options_.rank, options_.rank, 0, reason});
    check_left();
    return;
  }
  // News travel on all links, and could overtake messages that are on one. So those first.
  draining_ = true;
  for (Link& link : links_) {
    if (link.established) sync(link);
  }
  timer(options_.peer_loss_time / 2, [this] { end_draining(); });
  check_left();
}

void Member::sync(Link& link) {
  if (!link.carried_data) return;
  link.carried_data = false;
  ++link.frames_sent;
  WireWriter out;
  out.number(static_cast<std::uint8_t>(Frame::kSync));
  link.connection->send(out.bytes());
}

void Member::end_draining() {
  if (!draining_) return;
  draining_ = false;
  spread({Notice::Kind::kLeft, options_.rank, options_.rank, 0, {}});
}

void Member::check_left() {
  if (phase_ != Phase::kLeaving || closed_ || flush_planned_) return;
  for (const auto& [peer, frames] : waiting_) {
    if (state_of(peer) == Membership::State::kAlive && !gone_.contains(peer)) return;
  }
  // When all others have left, too, they need these news only to be able to go: sent is enough.
  const bool all_gone = membership_.next_alive(options_.rank) < 0;
  bool waits = false;
  for (const Link& link : links_) {
    if (!link.established) {
      // It may be the only way that news travel: wait for it, too.
      if (link.outgoing && state_of(link.peer) == Membership::State::kAlive) return;
      continue;
    }
    if (membership_.suspected(link.peer)) continue;
    if (!link.news.empty() || !link.connection->flushed() ||
        (!all_gone && link.frames_acknowledged != link.frames_sent)) {
      waits = true;
    } else if (state_of(link.peer) == Membership::State::kAlive) {
      // Not to one that leaves as well: two leavers would hand their news to each other, and go.
      handed_on_ = true;
    }
  }
  if (waits) return;
  if (draining_) {
    end_draining();  // plans a flush, which comes back here
    return;
  }
  if (!handed_on_) {
    if (const int next = successor(); next >= 0) {
      if (!connecting_to(next)) connect_peer(next);
      return;
    }
    if (!gone_.empty()) return;
  }
  close_all();
}

void Member::close_all() {
  if (closed_) return;
  closed_ = true;
  for (const Service::TimerKey& key : timers_) service_.cancel(key);
  timers_.clear();
  for (const auto& [peer, key] : gone_) service_.cancel(key);
  gone_.clear();
  waiting_.clear();
  // At once: a rank that got its proof now would never be told that this one leaves, and would take
  // it for lost.
  if (listener_) listener_->stop();
  // Deferred: this may run within a call of one of these.
  std::shared_ptr<Connection> root = std::move(root_);
  std::shared_ptr<Listener> listener = std::move(listener_);
  const auto links = std::make_shared<std::list<Link>>();
  for (Link& link : links_) {
    if (link.connection) link.connection->set_owner({});
  }
  if (root) root->set_owner({});
  links->splice(links->end(), links_);
  service_.defer([root, listener, links] {});
  {
    const Lock lock(mutex_);
    phase_ = Phase::kClosed;
  }
  changed_.notify_all();
  service_.drop(this);
}

// ---- any thread
// ----------------------------------------------------------------------------------

bool Member::blocked_by_loss(int peer, Channel channel, std::string* why) const {
  const Membership::State peer_state = membership_.state(peer);
  if (peer_state == Membership::State::kLeft) {
    *why = fmt::format("rank {} left the communicator", peer);
    return true;
  }
  if (channel == Channel::kMessages && peer_state == Membership::State::kAlive) return false;
  // Who gave up because another was lost is not the cause.
  const int cause = peer_state == Membership::State::kLost ? peer : membership_.first_failure();
  if (cause < 0) return false;
  *why = membership_.state(cause) == Membership::State::kLost
             ? fmt::format("rank {} is lost: {}", cause, membership_.reason(cause))
             : fmt::format("rank {} aborted: {}", cause, membership_.reason(cause));
  return true;
}

void Member::send(int peer, Channel channel, std::uint32_t tag, std::span<const std::byte> data) {
  if (peer < 0 || peer >= options_.size) {
    throw Error(Errc::kInvalidArgument, "bootstrap message to rank {} of {}", peer, options_.size);
  }
  if (data.size() > Bootstrap::kMaxMessageBytes) {
    throw Error(Errc::kInvalidArgument, "bootstrap message of {} bytes to rank {}; at most {}",
                data.size(), peer, Bootstrap::kMaxMessageBytes);
  }
  {
    const Lock lock(mutex_);
    if (aborted_here_) throw Error(Errc::kAborted, "aborted: {}", abort_reason_);
    if (left_here_) throw Error(Errc::kInvalidUsage, "this rank has left the communicator");
    std::string why;
    if (peer != options_.rank && membership_.state(peer) != Membership::State::kAlive &&
        blocked_by_loss(peer, Channel::kMessages, &why)) {
      throw Error(Errc::kPeerLost, "bootstrap message to rank {}: {}", peer, why);
    }
    if (peer == options_.rank) {
      inbox_[{peer, channel, tag}].emplace_back(data.begin(), data.end());
    }
  }
  if (peer == options_.rank) {
    changed_.notify_all();
    return;
  }
  WireWriter out;
  out.number(static_cast<std::uint8_t>(Frame::kData));
  out.number(static_cast<std::uint8_t>(channel));
  out.number(tag);
  out.raw(data);
  service_.post([self = shared_from_this(), peer, frame = out.take()]() mutable {
    self->send_to(peer, std::move(frame));
  });
}

std::optional<std::vector<std::byte>> Member::take(int peer, Channel channel, std::uint32_t tag,
                                                   std::string_view what) {
  const auto found = inbox_.find({peer, channel, tag});
  if (found != inbox_.end()) {
    std::vector<std::byte> message = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) inbox_.erase(found);
    return message;
  }
  if (aborted_here_) throw Error(Errc::kAborted, "{}: aborted: {}", what, abort_reason_);
  if (left_here_) throw Error(Errc::kInvalidUsage, "{}: this rank has left", what);
  std::string why;
  if (blocked_by_loss(peer, channel, &why)) throw Error(Errc::kPeerLost, "{}: {}", what, why);
  return std::nullopt;
}

std::optional<std::vector<std::byte>> Member::try_receive(int peer, Channel channel,
                                                          std::uint32_t tag,
                                                          std::string_view what) {
  const Lock lock(mutex_);
  return take(peer, channel, tag, what);
}

std::vector<std::byte> Member::receive(int peer, Channel channel, std::uint32_t tag,
                                       Deadline deadline, std::string_view what) {
  if (peer < 0 || peer >= options_.size) {
    throw Error(Errc::kInvalidArgument, "{} from rank {} of {}", what, peer, options_.size);
  }
  Lock lock(mutex_);
  std::optional<std::vector<std::byte>> message;
  const auto came = [&]() RW_REQUIRES(mutex_) {
    message = take(peer, channel, tag, what);
    return message.has_value();
  };
  const auto ask = [what] { check_interrupt(what); };
  if (!lock.wait_until(changed_, deadline, came, kInterruptPeriod, ask)) {
    throw Error(Errc::kTimeout, "{}: rank {} did not answer in time", what, peer);
  }
  return *std::move(message);
}

void Member::watch(Observer* observer) {
  const Lock watching(watch_mutex_);
  observer_ = observer;
  if (observer == nullptr) return;
  for (const Event& event : history_) {
    switch (event.kind) {
      case Notice::Kind::kLost: observer->on_lost(event.rank, event.reason); break;
      case Notice::Kind::kLeft: observer->on_left(event.rank); break;
      case Notice::Kind::kAborted: observer->on_abort(event.rank, event.reason); break;
      case Notice::Kind::kSuspected: observer->on_suspect(event.rank, true); break;
      case Notice::Kind::kCleared: observer->on_suspect(event.rank, false); break;
    }
  }
}

void Member::leave() {
  {
    const Lock lock(mutex_);
    if (aborted_here_ || left_here_) return;
    left_here_ = true;
  }
  changed_.notify_all();
  service_.post(
      [self = shared_from_this()] { self->begin_leaving(Notice::Kind::kLeft, std::string()); });
}

void Member::abort(std::string_view reason) {
  {
    const Lock lock(mutex_);
    if (aborted_here_ || left_here_) return;
    aborted_here_ = true;
    abort_reason_ = reason.substr(0, Notice::kMaxReasonBytes);
  }
  changed_.notify_all();
  service_.post([self = shared_from_this(), text = std::string(reason)] {
    self->begin_leaving(Notice::Kind::kAborted, text);
  });
}

void Member::wait_closed() {
  Lock lock(mutex_);
  // The service thread closes after PEER_LOSS_TIME at the latest.
  lock.wait(changed_, [this] { return phase_ == Phase::kClosed; });
}

}  // namespace ropewalk::bootstrap
