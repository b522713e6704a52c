// One rank of a communicator, as the service thread sees it: joining, links to other ranks,
// messages, and the watch over the others (monitor.h).
//
// A link is an established connection between two ranks; either end may have opened it, and both
// use it. Each rank keeps one to the next living rank (the ring); others come when a message is
// sent. News go over all links of a rank.
//
// Leaving: a rank that leaves or gives up floods that, and closes its links only when every notice
// it sent or passed on was acknowledged by the link's other end, and by one at least that does not
// leave itself, as far as is known (or all have left). So news are never only with ranks that are
// gone, however many leave at once, and no survivor takes a leaver for dead. A rank that stays
// acknowledges only what it has sent on: when it is killed next, the news have left it already.
// Only when all ranks that the news have reached are killed with it are they lost; the others then
// find that nobody listens at the leaver's address, and take it for dead.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/join_protocol.h"
#include "bootstrap/listener.h"
#include "bootstrap/monitor.h"
#include "core/mutex.h"

namespace ropewalk::bootstrap {

class Member : public std::enable_shared_from_this<Member> {
 public:
  struct Options {
    UniqueIdParts id;
    int rank = 0;
    int size = 0;
    std::string interfaces;  // SOCKET_IFNAME
    std::chrono::nanoseconds peer_loss_time{};
    Deadline join_deadline;
  };
  enum class Channel : std::uint8_t { kMessages = 0, kCollectives = 1 };

  Member(Service& service, Options options);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // ---- any thread -----------------------------------------------------------------------

  /// Starts to join, waits, throws why it failed.
  void join();
  void send(int peer, Channel channel, std::uint32_t tag, std::span<const std::byte> data);
  /// Waits. `what` names the operation in errors. Collectives fail when any rank is gone that did
  /// not leave in order, messages only when `peer` is.
  std::vector<std::byte> receive(int peer, Channel channel, std::uint32_t tag, Deadline deadline,
                                 std::string_view what);
  /// The same without waiting: nothing when no such message is there yet.
  std::optional<std::vector<std::byte>> try_receive(int peer, Channel channel, std::uint32_t tag,
                                                    std::string_view what);
  void watch(Observer* observer);
  /// Both start; wait_closed() waits until the others have taken note.
  void leave();
  void abort(std::string_view reason);
  void wait_closed();

  [[nodiscard]] int rank() const noexcept { return options_.rank; }
  [[nodiscard]] int size() const noexcept { return options_.size; }
  /// After join().
  [[nodiscard]] const SocketAddress& address(int peer) const {
    return table_[static_cast<std::size_t>(peer)].address;
  }

 private:
  // The oldest such message, if any; throws when none can come.
  std::optional<std::vector<std::byte>> take(int peer, Channel channel, std::uint32_t tag,
                                             std::string_view what) RW_REQUIRES(mutex_);
  enum class Phase : std::uint8_t { kJoining, kJoined, kLeaving, kClosed };

  struct Link {
    int peer = -1;
    std::unique_ptr<Connection> connection;
    bool established = false;
    bool outgoing = false;
    bool spoken = false;            // something was received
    std::vector<Notice> news;       // not sent yet
    std::uint32_t frames_sent = 0;  // with notices
    std::uint32_t frames_acknowledged = 0;
    std::uint32_t frames_received = 0;
    std::uint32_t frames_confirmed = 0;  // of those received, as told to the peer
    bool carried_data = false;           // from this rank, since the last kSync frame
  };
  using LinkPlace = std::list<Link>::iterator;

  /// What on_lost and the others are called with.
  struct Event {
    Notice::Kind kind;
    int rank;
    std::string reason;
  };

  // Joining.
  void start();
  void connect_to_root();
  void on_root_established();
  void on_root_message(const std::vector<std::byte>& message);
  void on_root_closed(const Closing& closing);
  void open_listener();
  // This process lacks what joining takes: fails, and lets the others know why.
  void cannot_join(const std::string& reason);
  void tell_root(const std::string& reason);
  void check_linked();
  void on_go();
  void fail_join(Errc code, const std::string& text);

  // Links.
  void connect_peer(int peer);
  void on_accepted(std::unique_ptr<Connection> connection);
  LinkPlace add_link(int peer, bool outgoing);
  void own_connection(LinkPlace link);
  Connection::Owner link_owner(LinkPlace link);
  void on_link_established(LinkPlace link);
  void on_link_message(LinkPlace link, std::vector<std::byte>& message);
  void on_link_closed(LinkPlace link, const Closing& closing);
  void on_cannot_connect(int peer, const Closing& closing);
  Link* find_link(int peer);  // established, the one to send on
  bool connecting_to(int peer);
  void send_to(int peer, std::vector<std::byte> frame);

  // Watching.
  void spread(const Notice& notice);
  void take_news(const Notice& notice, const Link* from);
  void tell_suspicion(int rank, bool before);
  void flush_news();
  void send_news(Link& link);
  [[nodiscard]] bool can_pass_on(const Link& from) const;
  void flush_soon();
  void keep_ring();
  [[nodiscard]] int successor() const;  // the next living, reachable rank, or -1
  void on_tick();
  void on_gone_grace(int peer);
  void suspect(int peer, bool suspected);
  void heard(int peer);
  [[nodiscard]] bool same_process(int peer) const;
  [[nodiscard]] int previous_alive() const;

  // The end.
  void begin_leaving(Notice::Kind kind, const std::string& reason);
  void sync(Link& link);
  void end_draining();
  void check_left();
  void close_all();

  [[nodiscard]] Membership::State state_of(int rank) const { return membership_.state(rank); }
  [[nodiscard]] bool blocked_by_loss(int peer, Channel channel, std::string* why) const;

  Service& service_;
  const Options options_;

  mutable Mutex mutex_;
  std::condition_variable changed_;
  // These two are written by the service thread only, holding mutex_; it therefore reads them
  // without, others holding it. The analysis has no words for that.
  Phase phase_ = Phase::kJoining;
  Membership membership_;
  bool join_failed_ RW_GUARDED_BY(mutex_) = false;
  Errc join_error_ RW_GUARDED_BY(mutex_) = Errc::kInternal;
  std::string join_text_ RW_GUARDED_BY(mutex_);
  bool aborted_here_ RW_GUARDED_BY(mutex_) = false;
  bool left_here_ RW_GUARDED_BY(mutex_) = false;
  std::string abort_reason_ RW_GUARDED_BY(mutex_);
  std::map<std::tuple<int, Channel, std::uint32_t>, std::deque<std::vector<std::byte>>> inbox_
      RW_GUARDED_BY(mutex_);

  // Held while the observer is called; taken before mutex_.
  Mutex watch_mutex_ RW_ACQUIRED_BEFORE(mutex_);
  Observer* observer_ RW_GUARDED_BY(watch_mutex_) = nullptr;
  std::vector<Event> history_ RW_GUARDED_BY(watch_mutex_);

  // Written by the service thread before phase_ becomes kJoined, constant afterwards.
  std::vector<RankRecord> table_;

  // Service thread only.
  RankRecord own_record_;
  std::unique_ptr<Connection> root_;
  bool root_proven_ = false;
  int root_attempts_ = 0;
  std::unique_ptr<Listener> listener_;
  std::list<Link> links_;
  std::map<int, std::vector<std::vector<std::byte>>> waiting_;  // frames, by peer without a link
  std::map<int, Closing> early_losses_;  // links that ended before this rank was let go
  bool ready_sent_ = false;
  std::set<int> unreachable_;              // not taken for the ring now
  std::map<int, Service::TimerKey> gone_;  // refused a connection; lost unless news say otherwise
  std::vector<Service::Clock::time_point> heard_at_;
  std::set<int> neighbours_;  // at the last tick
  Service::Clock::time_point last_tick_;
  std::set<Service::TimerKey> timers_;
  bool flush_planned_ = false;
  bool settle_planned_ = false;
  bool draining_ = false;   // leaving, not announced yet: messages are on their way
  bool handed_on_ = false;  // leaving: a rank that stays has acknowledged all that is known here
  bool closed_ = false;

  void timer(Service::Clock::duration delay, std::function<void()> task);
  void timer_at(Service::Clock::time_point when, std::function<void()> task);
};

}  // namespace ropewalk::bootstrap
