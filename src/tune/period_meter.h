// Times calls by what the program that makes them sees: from the start of a call to that of one
// some calls later.
//
// The time of a single call says little about an operation with a root: a broadcast's root is done
// when its data has left it, and the ranks at the end of a chain are not. Over many calls all ranks
// go at the rate of the slowest one, since links hold a bounded number of bytes. So the period of
// calls is the same at every rank, and includes what the program does between them.
#pragma once

#include <cstddef>
#include <optional>

#include "tune/chunk_controller.h"

namespace ropewalk::tune {

/// Pure. Threads: one at a time.
class PeriodMeter {
 public:
  /// @param calls  that a period has; at least 1
  explicit PeriodMeter(int calls) : calls_(calls) {}

  /// The number of calls of `bytes` each that a period needs: as many as carry several times what
  /// links hold.
  static int calls_of(std::size_t bytes) noexcept;

  /// A call with that chunk begins, `seconds` after some fixed time.
  /// @return at the end of a period of calls with equal chunks, the seconds that one took
  std::optional<double> begins(ChunkCode chunk, double seconds) noexcept;

 private:
  int calls_;
  ChunkCode chunk_ = kNoChunk;
  int begun_ = 0;  // of this period
  double start_ = 0;
};

}  // namespace ropewalk::tune
