// Chunk sizes that are tuned while long operations run (tune/chunk_controller.h), alike on all
// ranks without a message of its own.
//
// Both ends of a link must cut a call alike, so one rank decides for all (comm/call_decider.h).
//
// Elements are combined in an order that does not depend on chunks, so that results are the same
// bits whatever the chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "comm/call_decider.h"
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

/// A shape of call, as one rank knows it.
///
/// Threads: one at a time.
class ChunkShape {
 public:
  ChunkShape(const tune::Choice& choice, const ChunkRange& range, bool decides);
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
  /// For CallShapes.
  [[nodiscard]] bool serves(const tune::Choice& choice, const ChunkRange& range) const {
    return algorithm_ == choice.algorithm && range_ == range;
  }

 private:
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

using AgreedChunks = CallShapes<ChunkShape, ChunkRange>;

}  // namespace ropewalk::comm
