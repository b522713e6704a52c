// What the two ranks of a message share where one of them copies it straight from the other's
// memory or into it (copied_messages.h): where their hosts meet, and the words by which their
// streams wait for each other. Pinned memory of the host that all ranks of a communicator share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "handshake/shared_words.h"

namespace ropewalk::handshake {

/// Of a message.
enum class MessageEnd : std::uint8_t { kSends, kReceives };
[[nodiscard]] constexpr MessageEnd other(MessageEnd end) noexcept {
  return end == MessageEnd::kSends ? MessageEnd::kReceives : MessageEnd::kSends;
}

/// All messages of one rank to another; they are numbered from 0, by either rank for itself.
struct MessageDirection {
  int from = 0;
  int to = 0;
};
/// Of those of which `rank` has that end, and `peer` the other one.
[[nodiscard]] constexpr MessageDirection direction_of(int rank, int peer, MessageEnd end) noexcept {
  return end == MessageEnd::kSends ? MessageDirection{rank, peer} : MessageDirection{peer, rank};
}

/// Where a rank has its end of a message.
struct MessageBuffer {
  std::uint64_t window = 0;  ///< number of the registration; 0: the peer cannot reach it
  std::uint64_t offset = 0;  ///< from the start of this rank's part
  std::uint64_t bytes = 0;
};

/// Words in memory of somebody else, zero at first. Threads: any; each direction has one thread at
/// a time at either end.
class MessageWords : public SharedWords {
 public:
  /// @param host of bytes(ranks), aligned to a line; outlives this
  /// @param device its address for the GPU of this rank
  MessageWords(void* host, std::uint64_t device, int ranks) noexcept
      : SharedWords(host, device), ranks_(ranks) {}
  [[nodiscard]] static std::size_t bytes(int ranks) noexcept {
    const auto n = static_cast<std::size_t>(ranks);
    return n * n * kLinesOfDirection * kLine;
  }
  [[nodiscard]] int ranks() const noexcept { return ranks_; }

  /// Messages that one rank's host may be ahead of the other's.
  static constexpr std::uint64_t kMostAhead = 512;
  /// What a rank finds where it comes with its end of a message.
  struct Met {
    bool first = false;
    MessageBuffer theirs;  ///< of the rank that was first; of no meaning for that one
  };
  /// @return nothing where this rank is kMostAhead messages ahead: it comes again later
  [[nodiscard]] std::optional<Met> meet(MessageDirection direction, MessageEnd end,
                                        std::uint64_t number,
                                        const MessageBuffer& own) const noexcept;

  // The words of an end, written by streams; they only grow, but for the last one, and by less
  // than a wait for "at least" can tell from a wrap.
  /// By its own rank: twice one more than the message's number, and 1 more where it copies.
  [[nodiscard]] std::uint64_t& began(MessageDirection direction, MessageEnd end) const noexcept {
    return word(direction, end, 0);
  }
  /// By the other rank: one more than the number of a message whose buffer this end may copy from
  /// or to.
  [[nodiscard]] std::uint64_t& ready(MessageDirection direction, MessageEnd end) const noexcept {
    return word(direction, end, 1);
  }
  /// By who copies: one more than the number of a message that has come.
  [[nodiscard]] std::uint64_t& done(MessageDirection direction, MessageEnd end) const noexcept {
    return word(direction, end, 2);
  }
  /// By the other rank's host: not 0 once its copies may have come unasked.
  [[nodiscard]] std::uint64_t& spoiled(MessageDirection direction, MessageEnd end) const noexcept {
    return word(direction, end, 3);
  }

 private:
  static constexpr std::size_t kWordsOfEnd = 4;
  static constexpr std::size_t kLinesOfDirection = 2 * kWordsOfEnd + kMostAhead;
  // Where two hosts meet for one message.
  struct alignas(kLine) Meeting {
    std::uint64_t turn;  // how often it was used, times four; who was first
    std::array<MessageBuffer, 2> buffers;
  };
  static_assert(sizeof(Meeting) == kLine);

  [[nodiscard]] std::byte* line(MessageDirection direction, std::size_t number) const noexcept {
    const auto index = static_cast<std::size_t>(direction.from * ranks_ + direction.to);
    return at((index * kLinesOfDirection + number) * kLine);
  }
  [[nodiscard]] std::uint64_t& word(MessageDirection direction, MessageEnd end,
                                    std::size_t number) const noexcept {
    return *reinterpret_cast<std::uint64_t*>(
        line(direction, static_cast<std::size_t>(end) * kWordsOfEnd + number));
  }

  int ranks_;
};

}  // namespace ropewalk::handshake
