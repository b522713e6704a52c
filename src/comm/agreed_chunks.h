// Chunk sizes that are tuned while long operations run (tune/chunk_controller.h), alike on all
// ranks without a message of its own.
//
// Both ends of a link must cut a call alike. Rank 0 decides for all. Before a call begins it
// decides on the chunk of the *next* call of that shape, and writes it as a note into the tag of
// each chunk that it sends (executor/note.h). A rank that has received the note writes it into what
// it sends from then on. Operations are tuned in which every output has data of every rank: that of
// rank 0 comes by chunks which were sent after the note was known, so that every rank has the note
// when its call is over, in any schedule that the checker accepts; and rank 0 is not done before
// every rank has begun. Not so the operations with a root: the root of a broadcast is done when its
// data has left it, so that its time says nothing of the ranks at the end of a chain.
//
// Elements are combined in an order that does not depend on chunks, so that results are the same
// bits whatever the chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "comm/collective_call.h"
#include "executor/note.h"
#include "tune/choice.h"
#include "tune/chunk_controller.h"

namespace ropewalk::comm {

inline constexpr int kDecidingRank = 0;

/// The chunks that a call may have.
struct ChunkRange {
  tune::ChunkCode start = tune::kNoChunk;
  tune::ChunkCode least = tune::kNoChunk;
  tune::ChunkCode most = tune::kNoChunk;
  std::size_t start_bytes = 0;  ///< what `start` stands for
  friend bool operator==(const ChunkRange&, const ChunkRange&) = default;
};

/// Nothing for calls that are not tuned: short ones, and operations whose outputs do not all have
/// data of all ranks. The same on all ranks.
/// @param by_address  the chunks of the call go by address where `choice` wants that
/// @param slot_bytes  the largest chunk that can be staged
std::optional<ChunkRange> chunk_range(const CollectiveCall& call, const Extent& extent,
                                      const tune::Choice& choice, bool by_address,
                                      std::size_t slot_bytes);

/// The bytes of the chunks of calls whose chunks are not tuned.
/// @param by_address  as for chunk_range()
std::size_t chosen_chunk(const tune::Choice& choice, bool by_address) noexcept;

/// What became of the chunks of a shape.
struct ChunkReport {
  std::size_t bytes = 0;        ///< of the next call
  std::size_t start_bytes = 0;  ///< as the cost model chose
  bool tuned = false;           ///< they may change; else the rest says nothing
  bool decides = false;         ///< this rank; only it knows the rest
  bool settled = false;
  double gain = 1;  ///< ChunkController::gain()
};

/// Of one communicator.
///
/// Threads: one at a time.
class AgreedChunks {
 public:
  explicit AgreedChunks(int rank) : rank_(rank) {}

  /// A shape of call.
  class Shape {
   public:
    Shape(std::string algorithm, const ChunkRange& range, bool decides);
    /// The chunk of the call that begins now.
    [[nodiscard]] std::size_t chunk_bytes() const noexcept { return bytes_of(now_); }
    /// The note for the tag of the call that begins now.
    [[nodiscard]] std::uint8_t note() const noexcept {
      return controller_.has_value() ? controller_->wanted() : tune::kNoChunk;
    }
    /// That call is over, and took `seconds`; `note` is what its tag has by now.
    /// @throws Error kInternal without a note
    void completed(std::uint8_t note, double seconds, int rank);
    [[nodiscard]] ChunkReport report() const noexcept;

   private:
    friend class AgreedChunks;
    [[nodiscard]] std::size_t bytes_of(tune::ChunkCode code) const noexcept {
      return code == range_.start ? range_.start_bytes : tune::chunk_bytes(code);
    }
    std::string algorithm_;
    ChunkRange range_;
    tune::ChunkCode now_;
    std::optional<tune::ChunkController> controller_;  // of the rank that decides
  };

  /// Of a call that begins; null when there are too many shapes for this one. A shape begins anew
  /// when its algorithm or range is not what it was. The pointer holds for ever.
  Shape* of(const CollectiveCall& call, const Extent& extent, const tune::Choice& choice,
            const ChunkRange& range);
  /// nullopt for a shape that has not been called.
  [[nodiscard]] std::optional<ChunkReport> report(const CollectiveCall& call,
                                                  const Extent& extent) const;

 private:
  // Calls of a program that never calls twice alike are not worth remembering.
  static constexpr std::size_t kMostShapes = 1024;
  // Calls of one size in bytes share their chunks, whatever the type.
  using Key = std::pair<Collective, std::size_t>;
  static Key key_of(const CollectiveCall& call, const Extent& extent) noexcept {
    return {call.collective, call.count * extent.element_bytes};
  }

  int rank_;
  std::map<Key, Shape> shapes_;
};

}  // namespace ropewalk::comm
