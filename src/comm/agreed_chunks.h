// Chunk sizes that are tuned while long operations run (tune/chunk_controller.h), alike on all
// ranks without a message of its own.
//
// Both ends of a link must cut a call alike. One rank decides for all. Before a call begins it
// decides on the chunk of the *next* call of that shape, and writes it as a note into the tag of
// each chunk that it sends (executor/note.h). A rank that has received the note writes it into what
// it sends from then on. Only calls are tuned in which every rank receives a chunk with the note
// before its call is over, in any run of the schedule (schedule/reach.h). So nothing is sent for
// it, no call waits for it, and all ranks change at the same call of a shape.
//
// - Where every output has data of every rank (all-reduce, all-gather, reduce-scatter, all-to-all)
//   rank 0 decides. It is not done before every rank has begun, so that it judges by the time of
//   each call.
// - In a broadcast and a scatter the root decides, since its data goes to all. It is done before
//   the others, so that it judges by the periods of many calls (tune/period_meter.h).
// - In a reduce and a gather data goes to the root alone. They are tuned where the schedule leads
//   the data of some rank through all others: between two ranks, along a chain. That rank decides,
//   by periods. In other trees and in direct sends no rank's data passes all others: whatever the
//   root measures, it cannot tell the others with the data of such calls.
//
// Calls with another root are of another shape.
//
// Elements are combined in an order that does not depend on chunks, so that results are the same
// bits whatever the chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "comm/collective_call.h"
#include "executor/note.h"
#include "tune/choice.h"
#include "tune/chunk_controller.h"
#include "tune/period_meter.h"

namespace ropewalk::comm {

/// The chunks that a call may have, and who decides.
struct ChunkRange {
  tune::ChunkCode start = tune::kNoChunk;
  tune::ChunkCode least = tune::kNoChunk;
  tune::ChunkCode most = tune::kNoChunk;
  std::size_t start_bytes = 0;  ///< what `start` stands for
  int decider = 0;              ///< a rank
  int period_calls = 0;         ///< calls that it times together; 0: each by itself
  friend bool operator==(const ChunkRange&, const ChunkRange&) = default;
};

/// Nothing for calls that are not tuned: short ones, and those in which no rank's data reaches all
/// others. The same on all ranks.
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
    /// A call begins, `seconds` after some fixed time. Before the functions below are asked.
    void begins(double seconds, int rank);
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
    void measured(double seconds, int rank);
    [[nodiscard]] std::size_t bytes_of(tune::ChunkCode code) const noexcept {
      return code == range_.start ? range_.start_bytes : tune::chunk_bytes(code);
    }
    std::string algorithm_;
    ChunkRange range_;
    tune::ChunkCode now_;
    std::optional<tune::ChunkController> controller_;  // of the rank that decides
    std::optional<tune::PeriodMeter> periods_;         // where it times calls together
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
  // Calls of one size in bytes share their chunks, whatever the type. With their root.
  using Key = std::tuple<Collective, std::size_t, int>;
  static Key key_of(const CollectiveCall& call, const Extent& extent) noexcept {
    return {call.collective, call.count * extent.element_bytes,
            has_root(call.collective) ? call.root : 0};
  }

  int rank_;
  std::map<Key, Shape> shapes_;
};

}  // namespace ropewalk::comm
