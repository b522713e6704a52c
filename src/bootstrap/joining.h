// How a rank joins, through the root service of the unique id (root.h). Service thread only.
//
// - kConnecting: to the root, again where a connection ends before both ends have proven themselves
// - kIntroduced: the root has this rank's record
// - kLinking: the root has sent all records: connects to the next rank, awaits the previous one
// - kLinked: the root knows that both links are there
// - kDone: the root released all ranks, or joining failed
//
// Each is followed by the next one or by kDone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/connection.h"
#include "bootstrap/peer_links.h"
#include "bootstrap/rank_context.h"

namespace ropewalk::bootstrap {

class Joining {
 public:
  enum class State : std::uint8_t { kConnecting, kIntroduced, kLinking, kLinked, kDone };

  /// @return whether joining in state `from` may enter state `to`
  static constexpr bool may_enter(State from, State to) noexcept {
    return from != State::kDone &&
           (to == State::kDone || static_cast<int>(to) == static_cast<int>(from) + 1);
  }

  class Owner {
   public:
    virtual ~Owner() = default;
    /// The records of all ranks are there.
    virtual void on_table() = 0;
    /// All ranks have joined. `losses`: links that have ended meanwhile.
    virtual void on_joined(const std::map<int, Closing>& losses) = 0;
    /// Closes the rank.
    virtual void on_join_failed(const Error& error) = 0;
  };

  /// Beyond the caller's deadline the root still gets this long to name the missing ranks.
  static constexpr std::chrono::seconds kRootSlack{2};

  Joining(RankContext& context, PeerLinks& links, Owner& owner)
      : context_(context), links_(links), owner_(owner) {}

  void start();
  /// This process lacks what joining takes: fails, and lets the others know why.
  void cannot_join(const std::string& reason);
  /// The same of links, while this rank joins.
  void on_link();
  void on_link_ended(int peer, const Closing& closing);
  void on_cannot_connect(int peer, const Closing& closing);
  /// Closes the connection to the root without calling the owner.
  void close();

 private:
  void enter(State next);
  void connect_to_root();
  void introduce();
  void open_listener();
  void on_root_message(const std::vector<std::byte>& message);
  void on_table(WireReader& in);
  void on_go();
  void on_root_closed(const Closing& closing);
  void report(const std::string& reason);
  void fail(Errc code, const std::string& text);

  RankContext& context_;
  PeerLinks& links_;
  Owner& owner_;
  State state_ = State::kConnecting;
  RankRecord own_record_;
  std::unique_ptr<Connection> root_;
  int attempts_ = 0;                     // to connect to the root, that failed
  std::map<int, Closing> early_losses_;  // links that ended before this rank was released
};

}  // namespace ropewalk::bootstrap
