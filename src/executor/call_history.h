// The last calls of a communicator on this rank.
//
// Where ranks are called differently, the difference may show only later: two ranks that both think
// to be a broadcast's root send, nobody receives, and the next call finds the chunk. The history
// says what this rank did in the call that the chunk is of.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "executor/fifo.h"

namespace ropewalk::executor {

/// Threads: one at a time.
class CallHistory {
 public:
  void record(const CallTag& tag) noexcept {
    copy_tag(tags_[tag.call % tags_.size()], tag, tag.call);
  }

  /// This rank's call of that number, if it is one of the last.
  [[nodiscard]] std::optional<CallTag> find(std::uint32_t call) const noexcept {
    const CallTag& tag = tags_[call % tags_.size()];
    if (call == 0 || tag.call != call) return std::nullopt;
    return tag;
  }

  /// Whether this is so of one of the last calls.
  [[nodiscard]] bool any_of(auto&& condition) const {
    return std::any_of(tags_.begin(), tags_.end(),
                       [&](const CallTag& tag) { return tag.call != 0 && condition(tag); });
  }

 private:
  std::array<CallTag, 64> tags_{};
};

/// What differs between two ranks' calls, in words: fields, then both calls. When `history` has
/// this rank's call of the peer's number, the two of one number are compared; else `ours`.
[[nodiscard]] std::string describe_difference(int rank, const CallTag& ours,
                                              const CallHistory& history, int peer,
                                              const CallTag& theirs);

}  // namespace ropewalk::executor
