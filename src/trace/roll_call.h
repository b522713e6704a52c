// Where the ranks of a communicator are, asked by one that has waited too long: who is missing.
//
// A rank that waits knows only whose data it waits for, and that rank may wait for a third. So at
// its deadline it asks all others which collective they entered last. Service threads answer, also
// of a rank whose program sleeps, or computes without end; only a process that stands still, or a
// host that is gone, does not. Nothing is sent before.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "core/mutex.h"
#include "trace/call_records.h"

namespace ropewalk::trace {

/// Threads: any; one asks at a time.
class RollCall {
 public:
  /// Answers the others until it is destroyed. Both outlive it.
  RollCall(bootstrap::Bootstrap& bootstrap, const CallRecords& records);
  ~RollCall();
  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  /// What a rank says of itself.
  struct Position {
    std::uint64_t call = 0;  ///< number of the last collective that it entered, from 1; 0: none
    bool inside = false;     ///< it has not completed that
    std::string operation;   ///< that, or its last message where it was in no collective; may be ""
    // Collectives that are enqueued and that its GPU has not begun, the first and the last one; 0:
    // none, or not known.
    std::uint64_t not_begun = 0;
    std::uint64_t enqueued = 0;
  };
  /// What this rank itself says. Of operations on a GPU those count as entered that it has begun.
  [[nodiscard]] static Position position_in(const CallRecords& records);
  /// Of all ranks but this one and `left`, those that answer within kPatience.
  [[nodiscard]] std::map<int, Position> ask(std::span<const int> left);

  /// The longest that ask() waits.
  static constexpr std::chrono::milliseconds kPatience{500};

 private:
  void on_ask(int peer);
  void on_answer(int peer, std::span<const std::byte> bytes);

  bootstrap::Bootstrap& bootstrap_;
  const CallRecords& records_;
  Mutex mutex_;
  std::map<int, Position> answers_ RW_GUARDED_BY(mutex_);
};

/// What a rank waits in.
struct Waiting {
  int rank = 0;  ///< the one that waits, and has asked
  int size = 1;  ///< of the communicator
  /// Number of its collective, modulo 2^32; nothing if it waits for messages.
  std::optional<std::uint32_t> call;
  std::vector<int> peers;  ///< for whom, where it waits for messages
  std::vector<int> left;   ///< who left, and was not asked
};

/// What ask() found, for the end of an error's text, from "; " on: the ranks that do not answer;
/// those that have not entered the collective; those whose GPUs have not begun it; and where they
/// are, at most four of them one by one. Of a rank that waits for messages: where those are that it
/// waits for. "" if there is nothing to tell.
[[nodiscard]] std::string missing(const std::map<int, RollCall::Position>& found,
                                  const Waiting& waiting);

}  // namespace ropewalk::trace
