// Tunes the chunk size of one shape of call while it is called again and again, by the times that
// the calls take.
//
// The rule is MIAD (multiplicative increase, additive decrease) of G. Wang et al., "Blink: Fast and
// Generic Collectives for Distributed ML", MLSys 2020 (arXiv 1910.04940), its paragraph "automatic
// chunk size selection" on generating code: the chunk is doubled as long as calls become
// faster, then made smaller by a fixed amount as long as they do. (Seen as the number of chunks in
// a call it is the better known rule: additive increase, multiplicative decrease.) Blink starts
// with a small chunk; here the start is what the cost model chose. Each chunk is judged by the
// least time of some calls, since ranks that come late only ever make a call longer; and what seems
// better than the start is compared with it once more before it stays.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ropewalk::tune {

/// A chunk size in a byte: eight to an octave. The size of code c is (8 + m) * 2^(e + 4) bytes,
/// with e = (c - 1) / 8 and m = (c - 1) % 8. 0: no size. Codes that are 8 apart are a factor of two
/// apart; within an octave codes differ by equal amounts.
using ChunkCode = std::uint8_t;
inline constexpr ChunkCode kNoChunk = 0;

/// @pre code is not kNoChunk
std::size_t chunk_bytes(ChunkCode code) noexcept;
/// The largest size of at most `bytes`. @pre bytes >= 128
ChunkCode chunk_code(std::size_t bytes) noexcept;

/// Pure: what it wants follows from what it was told.
///
/// Threads: one at a time.
class ChunkController {
 public:
  /// Chunks from `least` to `most`. @pre least <= start <= most
  ChunkController(ChunkCode start, ChunkCode least, ChunkCode most);

  /// A call took so long. Calls with another chunk than the wanted one say nothing: one call is
  /// always in flight when the next one is decided.
  void measured(ChunkCode chunk, double seconds);

  /// The chunk that calls should have.
  [[nodiscard]] ChunkCode wanted() const noexcept { return wanted_; }
  /// Nothing is tried any more, until calls take longer for many in a row.
  [[nodiscard]] bool settled() const noexcept { return state_ == State::kSettled; }
  /// How much shorter calls are than with the chunk that the last search began with: the ratio of
  /// their times, at least 1. 1 before it has settled.
  [[nodiscard]] double gain() const noexcept { return gain_; }

  /// Calls that are not judged at first: they make links, and touch memory for the first time.
  static constexpr int kUnjudged = 2;
  /// By which each chunk is judged.
  static constexpr int kSamples = 4;
  /// A search makes no more calls than this.
  static constexpr int kMostCalls = 1024;
  /// After a search, calls that are watched together.
  static constexpr int kWatched = 32;
  /// Searches after the first one.
  static constexpr int kMostSearches = 8;

 private:
  enum class State : std::uint8_t {
    kStart,
    kGrowing,
    kShrinking,
    kStartAgain,
    kBestAgain,
    kSettled
  };
  void judge(double seconds);
  void grow();
  void shrink();
  void confirm();
  void settle();
  void search();
  void want(ChunkCode chunk);
  void watch();

  ChunkCode start_;
  ChunkCode least_;
  ChunkCode most_;
  State state_ = State::kStart;
  ChunkCode wanted_;
  ChunkCode best_;
  double best_seconds_ = 0;
  double start_seconds_ = 0;  // when it was compared again
  double gain_ = 1;
  int misses_ = 0;  // chunks in a row, smaller than the best one, that were no better
  int unjudged_ = kUnjudged;
  int samples_ = 0;
  int calls_ = 0;  // of this search
  int searches_ = 0;
  double least_seconds_ = 0;  // of the samples
};

}  // namespace ropewalk::tune
