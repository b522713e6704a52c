// Lets all ranks of a communicator begin something new at the same call, while they make calls.
//
// Calls are numbered alike on all ranks, and ranks may be any number of calls apart. Each rank has
// a limit: its calls from that number on look here first, those before do not. When all ranks are
// ready, rank 0 asks each for its limit, which then stays; the largest of all limits is the number
// of the first call of the new. No rank can have passed it, and none passes its limit before it
// knows the number. So a call may wait here, for messages that service threads answer, never for
// another rank's call: any order in which one thread makes the calls of several ranks is right.
// Limits lie a fraction of a millisecond ahead, whatever the calls take.
//
//   rank r -> 0: READY(subject, digest)       r has what is new, with this digest; 0: r will not
//   0 -> all:    ASK(subject, value)          all are ready, with equal digests; or rank 0 proposes
//                                             a value, for which no other rank needs to be ready
//   rank r -> 0: LIMIT(subject, number)
//   0 -> all:    FROM(subject, number)        kNever where digests differ, or a rank will not
//   rank r -> 0: LEAVING                      r makes no more calls
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "core/mutex.h"
#include "core/types.h"

namespace ropewalk::comm {

/// What an agreement is about: the plans for an operation, or a value that rank 0 proposes.
struct AgreementSubject {
  bool on_device = false;  ///< calls on the memory of GPUs; else of hosts
  Collective collective = Collective::kAllReduce;
  int root = 0;                ///< 0 for collectives without one
  std::uint32_t proposal = 0;  ///< its number, from 1, and the two above say nothing; 0: plans
  friend auto operator<=>(const AgreementSubject&, const AgreementSubject&) = default;
};

/// One rank's part.
///
/// Threads: any, but pass() and leave() by the one that makes calls.
class CallAgreement {
 public:
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

  /// @param bootstrap outlives it
  explicit CallAgreement(bootstrap::Bootstrap& bootstrap);
  ~CallAgreement();
  CallAgreement(const CallAgreement&) = delete;
  CallAgreement& operator=(const CallAgreement&) = delete;

  /// What begins with a call.
  struct Begun {
    AgreementSubject subject;
    std::uint64_t value = 0;  ///< of a proposal
  };

  /// This rank can begin with `subject`, and has it with `digest`; 0 when it never will.
  /// @pre it is no proposal
  void ready(const AgreementSubject& subject, std::uint64_t digest);

  /// All ranks begin with `value` at the same call, unless one leaves before.
  /// @pre this is rank 0, and what it proposed before has begun here
  /// @return the proposal's subject
  AgreementSubject propose(bool on_device, std::uint64_t value);

  /// Before call `number` (from 1) is made: waits while the others fix a number that this call may
  /// be beyond, and meanwhile calls `check`, which may throw, about every millisecond.
  /// @return the next number that this is for
  std::uint64_t pass(std::uint64_t number, const std::function<void()>& check);

  /// The first call that needs take().
  [[nodiscard]] std::uint64_t next(bool on_device) const noexcept {
    return next_[on_device ? 1 : 0].load(std::memory_order_relaxed);
  }
  /// All that begins with call `number` or has begun before, once; proposals in the order in which
  /// they were made. @pre pass() was for `number`
  std::vector<Begun> take(bool on_device, std::uint64_t number);
  /// The first call of the subject; kNever when none is fixed.
  [[nodiscard]] std::uint64_t first_call(const AgreementSubject& subject) const;

  /// This rank makes no more calls. For the end in order, before Bootstrap::leave().
  void leave() noexcept;

 private:
  enum class Kind : std::uint32_t { kReady, kAsk, kLimit, kFrom, kLeaving };
  struct Message {
    Kind kind = Kind::kReady;
    std::uint32_t on_device = 0;
    std::uint32_t collective = 0;
    std::int32_t root = 0;
    std::uint32_t proposal = 0;
    std::uint32_t unused = 0;
    std::uint64_t value = 0;
  };
  static Message message_of(Kind kind, const AgreementSubject& subject, std::uint64_t value);
  // Of rank 0, about one subject.
  struct Vote {
    std::map<int, std::uint64_t> digests;  // by rank
    std::set<int> limits_of;
    std::uint64_t most = 0;
    bool decided = false;
  };

  void on_message(int peer, std::span<const std::byte> bytes) noexcept;
  // Each handles a message; one to this rank itself does not go over the bootstrap.
  void handle(int peer, const Message& message) RW_REQUIRES(mutex_);
  void send(int peer, const Message& message) RW_REQUIRES(mutex_);
  void send_all(const Message& message) RW_REQUIRES(mutex_);
  void decide(const AgreementSubject& subject, Vote& vote, std::uint64_t number)
      RW_REQUIRES(mutex_);
  void on_ready(int peer, const AgreementSubject& subject, std::uint64_t digest)
      RW_REQUIRES(mutex_);
  void on_limit(int peer, const AgreementSubject& subject, std::uint64_t limit) RW_REQUIRES(mutex_);
  void on_from(const AgreementSubject& subject, std::uint64_t number) RW_REQUIRES(mutex_);
  void update_next() RW_REQUIRES(mutex_);

  using Clock = std::chrono::steady_clock;

  bootstrap::Bootstrap& bootstrap_;
  std::array<std::atomic<std::uint64_t>, 2> next_{kNever, kNever};  // on hosts, on GPUs
  mutable Mutex mutex_;
  std::condition_variable changed_;
  bool leaving_ RW_GUARDED_BY(mutex_) = false;
  std::uint64_t limit_ RW_GUARDED_BY(mutex_) = 1;
  std::uint64_t block_ RW_GUARDED_BY(mutex_) = 1;  // calls that the limit is raised by
  Clock::time_point raised_ RW_GUARDED_BY(mutex_);
  std::set<AgreementSubject> asked_ RW_GUARDED_BY(mutex_);  // the limit stays while there is any
  std::map<AgreementSubject, std::uint64_t> values_ RW_GUARDED_BY(mutex_);  // of proposals
  std::map<AgreementSubject, std::uint64_t> first_ RW_GUARDED_BY(mutex_);
  std::set<AgreementSubject> taken_ RW_GUARDED_BY(mutex_);  // of first_
  // Of rank 0.
  std::uint32_t last_proposal_ RW_GUARDED_BY(mutex_) = 0;
  std::map<AgreementSubject, Vote> votes_ RW_GUARDED_BY(mutex_);
  bool some_left_ RW_GUARDED_BY(mutex_) = false;
};

}  // namespace ropewalk::comm
