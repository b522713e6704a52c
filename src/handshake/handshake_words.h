// The words by which ranks wait for each other around copies by copy engines, where streams write
// them and wait for them (stream_handshake.h): pinned memory of the host that all ranks share.
//
// In the host's memory, and not in the GPUs', where a look would take a stream less: what a stream
// waits for the host can see and store without CUDA, which may be waiting for that very stream.
// A handshake takes a microsecond or two more for it; short calls are the kernels' anyway.
//
// Also a memory of the ranks' last calls, so that a rank can say how another one's differs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "executor/fifo.h"
#include "handshake/shared_words.h"

namespace ropewalk::handshake {

/// What ranks compare of a call.
struct HandshakeCall {
  executor::CallTag tag;  ///< with kByCopyEngines where copy engines make it
  std::uint64_t location =
      0;  ///< of its output: executor::OutputLocation, packed; 0 of others' calls
  friend bool operator==(const HandshakeCall&, const HandshakeCall&) = default;
};

/// A value that stands for the call in words: never 0, nor are its lowest three bits set. Two calls
/// that differ have the same once in 2^61.
/// @param check_tags false: it stands for the location alone (setting CHECK_CALLS)
[[nodiscard]] std::uint64_t handshake_value(const HandshakeCall& call, bool check_tags) noexcept;

/// Where a rank's stream is: with the value of its call, or 0 when no call is running.
enum class HandshakePhase : std::uint8_t { kNone, kEntering, kCopying, kLeaving };
struct HandshakeState {
  std::uint64_t value = 0;
  HandshakePhase phase = HandshakePhase::kNone;
  bool seen = false;  ///< by the host, since the stream has written it

  static constexpr std::uint64_t kSeen = 4;
  [[nodiscard]] constexpr std::uint64_t word() const noexcept {
    return value | static_cast<std::uint64_t>(phase) | (seen ? kSeen : 0);
  }
  [[nodiscard]] static constexpr HandshakeState of(std::uint64_t word) noexcept {
    return {word & ~std::uint64_t{7}, static_cast<HandshakePhase>(word & 3), (word & kSeen) != 0};
  }
};

/// Lines of words in memory of somebody else, zero at first. Threads: any; each line has one writer
/// at a time, but for the host that ends waits.
class HandshakeWords : public SharedWords {
 public:
  /// @param host of bytes(ranks), aligned to a line; outlives this
  /// @param device its address for the GPU of this rank
  HandshakeWords(void* host, std::uint64_t device, int ranks) noexcept
      : SharedWords(host, device), ranks_(ranks) {}
  [[nodiscard]] static std::size_t bytes(int ranks) noexcept {
    return static_cast<std::size_t>(ranks) * bytes_of_rank(ranks);
  }

  [[nodiscard]] int ranks() const noexcept { return ranks_; }
  /// Of `rank`: HandshakeState, by its stream and, as seen, its host.
  [[nodiscard]] std::uint64_t& state(int rank) const noexcept { return line(rank, 0); }
  /// Of `rank`: not 0 once another one's copies may have come unasked, or not at all.
  [[nodiscard]] std::uint64_t& spoiled(int rank) const noexcept { return line(rank, 1); }
  /// In the words of `rank`: that rank `by` may be written, in the call of that value.
  [[nodiscard]] std::uint64_t& entered(int rank, int by) const noexcept {
    return line(rank, 2 + by);
  }
  /// The same: that the copies of rank `by` into `rank` are done.
  [[nodiscard]] std::uint64_t& left(int rank, int by) const noexcept {
    return line(rank, 2 + ranks_ + by);
  }
  /// Calls of a rank that are remembered: the last ones that ran as they were called, which are
  /// more than streams hold, and the last ones that graphs captured.
  static constexpr std::size_t kRunCalls = 512;
  static constexpr std::size_t kCapturedCalls = 4096;
  /// By the rank itself. @param captured which one of those that graphs captured; nothing: none
  void remember(int rank, const HandshakeCall& call, std::uint64_t value,
                std::optional<std::size_t> captured) const noexcept;
  [[nodiscard]] std::optional<HandshakeCall> find_value(int rank,
                                                        std::uint64_t value) const noexcept;
  [[nodiscard]] std::optional<HandshakeCall> find_call(int rank,
                                                       std::uint32_t number) const noexcept;

 private:
  static constexpr std::size_t kEntryWords = 4;
  static constexpr std::size_t kEntries = kRunCalls + kCapturedCalls;
  [[nodiscard]] static std::size_t lines(int ranks) noexcept {
    return 2 + 2 * static_cast<std::size_t>(ranks);
  }
  [[nodiscard]] static std::size_t bytes_of_rank(int ranks) noexcept {
    return lines(ranks) * kLine + kEntries * kEntryWords * sizeof(std::uint64_t);
  }
  [[nodiscard]] std::uint64_t& line(int rank, int number) const noexcept {
    return *reinterpret_cast<std::uint64_t*>(
        at(static_cast<std::size_t>(rank) * bytes_of_rank(ranks_) +
           static_cast<std::size_t>(number) * kLine));
  }
  // Four words: the value, last and first; the location; the tag.
  [[nodiscard]] std::uint64_t* entry(int rank, std::size_t number) const noexcept {
    return &line(rank, static_cast<int>(lines(ranks_))) + number * kEntryWords;
  }
  struct Remembered {
    std::uint64_t value = 0;  // 0: nothing, or about to be
    HandshakeCall call;
  };
  [[nodiscard]] Remembered read(int rank, std::size_t number) const noexcept;

  int ranks_;
};

}  // namespace ropewalk::handshake
