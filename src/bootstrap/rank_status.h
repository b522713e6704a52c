// What any thread may see and wait for of one rank: its phase, the states of the other ranks, and
// the messages that have arrived.
//
//   kJoining -> kJoined -> kLeaving -> kClosed      legal: the next one, and kClosed from any
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "bootstrap/monitor.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/mutex.h"

namespace ropewalk::bootstrap {

/// Messages and the library's collectives do not mix, though both have tags.
enum class MessageChannel : std::uint8_t { kMessages = 0, kCollectives = 1 };

enum class RankPhase : std::uint8_t { kJoining, kJoined, kLeaving, kClosed };

/// @return whether a rank in phase `from` may enter phase `to`
constexpr bool may_enter(RankPhase from, RankPhase to) noexcept {
  switch (from) {
    case RankPhase::kJoining: return to == RankPhase::kJoined || to == RankPhase::kClosed;
    case RankPhase::kJoined: return to == RankPhase::kLeaving || to == RankPhase::kClosed;
    case RankPhase::kLeaving: return to == RankPhase::kClosed;
    case RankPhase::kClosed: return false;
  }
  return false;
}

/// Threads: as each part says.
class RankStatus {
 public:
  RankStatus(int rank, int size);

  // ---- any thread -----------------------------------------------------------------------

  /// Waits until joining has ended, well or not, until `deadline`, or until the program interrupts.
  /// @return false for the last two, which check_joined() then throws
  bool wait_joined(Deadline deadline);
  /// @throws Error: why this rank did not join
  void check_joined() const;

  /// @throws Error why nothing can be sent to `peer`: kAborted, kInvalidUsage after leave(),
  ///         kPeerLost
  void check_sendable(int peer) const;
  /// Adds a message of `peer` (which may be this rank) for receive().
  void deliver(int peer, MessageChannel channel, std::uint32_t tag, std::vector<std::byte> message);
  using MessageHandler = std::function<void(int peer, std::span<const std::byte> message)>;
  /// As Bootstrap::on_message(): deliver() calls `handler` for messages with `tag` from now on.
  void handle(std::uint32_t tag, MessageHandler handler);
  /// Waits for the oldest message of that peer, channel and tag; `what` names the operation in
  /// errors. On kCollectives it fails if any rank has died, on kMessages only if `peer` has ended.
  std::vector<std::byte> receive(int peer, MessageChannel channel, std::uint32_t tag,
                                 Deadline deadline, std::string_view what);
  /// The same without waiting: nothing when no such message has arrived.
  std::optional<std::vector<std::byte>> try_receive(int peer, MessageChannel channel,
                                                    std::uint32_t tag, std::string_view what);

  /// Calls that block end from now on.
  /// @return false when the rank left or aborted before
  bool set_left();
  bool set_aborted(std::string_view reason);
  void wait_closed();

  // ---- service thread -------------------------------------------------------------------

  [[nodiscard]] RankPhase phase() const noexcept { return phase_; }
  /// @pre may_enter(phase(), next)
  void enter(RankPhase next);
  /// Records why joining failed; enter(kClosed), which follows, wakes waiting threads.
  void fail_join(const Error& error);
  [[nodiscard]] const Membership& membership() const noexcept { return membership_; }
  /// As Membership's.
  bool merge(const Notice& notice);
  bool set_suspected(int subject, bool suspected, Notice* notice);

 private:
  using Key = std::tuple<int, MessageChannel, std::uint32_t>;

  // The oldest such message, if any; throws when none can arrive.
  std::optional<std::vector<std::byte>> take(const Key& key, std::string_view what)
      RW_REQUIRES(mutex_);
  [[nodiscard]] bool blocked_by_loss(int peer, MessageChannel channel, std::string* why) const;

  Mutex handlers_mutex_ RW_ACQUIRED_BEFORE(mutex_);  // held while a handler is called
  std::map<std::uint32_t, MessageHandler> handlers_ RW_GUARDED_BY(handlers_mutex_);
  mutable Mutex mutex_;
  std::condition_variable changed_;
  // These two are written by the service thread only, holding mutex_; it therefore reads them
  // without, others holding it. The analysis cannot express that.
  RankPhase phase_ = RankPhase::kJoining;
  Membership membership_;
  std::optional<Error> join_error_ RW_GUARDED_BY(mutex_);
  bool left_ RW_GUARDED_BY(mutex_) = false;
  std::optional<std::string> abort_reason_ RW_GUARDED_BY(mutex_);
  std::map<Key, std::deque<std::vector<std::byte>>> inbox_ RW_GUARDED_BY(mutex_);
};

}  // namespace ropewalk::bootstrap
