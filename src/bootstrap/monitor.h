// What a rank knows about the state of the others, and who is notified.
//
// A process watches the peers of all its communicators with one thread (the service thread of
// bootstrap/context.h). A connection that ends without goodbye is a death; silence of a ring
// neighbour for PEER_LOSS_TIME is a suspicion, which clears when the neighbour sends again. News
// are flooded over all open connections of a communicator, and every rank keeps a connection to the
// next living rank behind it: when that one dies, the rank connects to the one after it, which
// repairs the ring, finds further deaths (connection refused), and carries the news across the gap.
//
// Membership is the pure part: no sockets, no clock, no threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ropewalk::bootstrap {

/// Notified about the other ranks of one communicator (Bootstrap::watch). Called from the service
/// thread, which serves all communicators of the process: return soon, do not block, do not call
/// Bootstrap's blocking functions. abort() and the like of *other* objects are fine.
class Observer {
 public:
  virtual ~Observer() = default;
  /// `rank` died: its connection ended without goodbye, or its process has ended. Final.
  virtual void on_lost(int rank, const std::string& reason) = 0;
  /// `rank` does not answer (stopped, overloaded, network away), or answers again.
  virtual void on_suspect(int rank, bool suspected) = 0;
  /// `rank` left in order (Bootstrap::leave). Final.
  virtual void on_left(int rank) = 0;
  /// `rank` gave up (Bootstrap::abort). Final.
  virtual void on_abort(int rank, const std::string& reason) = 0;
};

/// One piece of news about one rank.
struct Notice {
  enum class Kind : std::uint8_t {
    kLost = 1,
    kLeft = 2,
    kAborted = 3,
    kSuspected = 4,
    kCleared = 5
  };
  Kind kind = Kind::kLost;
  int subject = 0;             ///< the rank that the news are about
  int origin = 0;              ///< kSuspected, kCleared: the rank that does not hear the subject
  std::uint32_t sequence = 0;  ///< kSuspected, kCleared: later ones of one origin win
  std::string reason;          ///< kLost, kAborted; at most kMaxReasonBytes

  static constexpr std::size_t kMaxReasonBytes = 512;
};

/// Bytes of notices, as they travel. decode_notices throws Error kInvalidArgument on anything that
/// encode_notices cannot have written for a communicator of `size` ranks.
std::vector<std::byte> encode_notices(std::span<const Notice> notices);
std::vector<Notice> decode_notices(std::span<const std::byte> bytes, int size);

/// The state of all ranks of a communicator, as one rank knows it.
class Membership {
 public:
  enum class State : std::uint8_t { kAlive, kLost, kLeft, kAborted };

  Membership(int rank, int size);

  /// Merges one notice.
  /// @return true when it was news, and so must be forwarded
  bool merge(const Notice& notice);

  /// This rank hears `subject` no more, or again.
  /// @return the notice to flood, if that is a change
  bool set_suspected(int subject, bool suspected, Notice* notice);

  [[nodiscard]] State state(int rank) const { return states_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const std::string& reason(int rank) const {
    return reasons_[static_cast<std::size_t>(rank)];
  }
  /// Somebody does not hear `rank`.
  [[nodiscard]] bool suspected(int rank) const;
  /// The rank that was lost or aborted first, as news came; -1 when none. The others that aborted
  /// most likely did so for it.
  [[nodiscard]] int first_failure() const noexcept;
  /// The next rank after `after` that is alive and not this one; -1 when there is none.
  [[nodiscard]] int next_alive(int after) const;
  [[nodiscard]] int num_alive() const noexcept { return size() - static_cast<int>(ended_.size()); }
  /// All known states, as notices: the first message on a new connection. Ranks that were lost,
  /// left or aborted stand in the order in which that became known, so that a rank that aborted
  /// because another was lost comes after it.
  [[nodiscard]] std::vector<Notice> snapshot() const;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(states_.size()); }

 private:
  struct Suspicion {
    std::uint32_t sequence = 0;
    bool suspected = false;
  };
  int rank_;
  std::vector<State> states_;
  std::vector<int> ended_;  // ranks that are not alive, in the order of the news
  std::vector<std::string> reasons_;
  std::map<std::pair<int, int>, Suspicion> suspicions_;  // by (subject, origin)
};

}  // namespace ropewalk::bootstrap
