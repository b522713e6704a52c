// A Program as one piece of memory, for blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/block/launch.h"
#include "executor/program.h"

namespace ropewalk::executor {

/// The programs of all channels of one rank, each `stride` bytes.
struct PackedPrograms {
  std::vector<std::byte> bytes;
  std::uint32_t stride = 0;  ///< LaunchArgs::program_bytes
  ProgramRoom room;
  std::uint32_t max_chunks = 0;  ///< of FlaggedPrograms: of any link in a round
};
/// Gives the ends of this rank's links, as blocks use them.
class BlockEnds {
 public:
  virtual ~BlockEnds() = default;
  virtual SendEnd send_end(int channel, int peer) = 0;
  virtual ReceiveEnd receive_end(int channel, int peer) = 0;
};

/// PackedPrograms, for protocol simple, over the links that `ends` gives.
PackedPrograms pack(const std::vector<Program>& programs, BlockEnds& ends);
/// FlaggedPrograms, for the others.
PackedPrograms pack_flagged(const std::vector<Program>& programs, BlockEnds& ends);

}  // namespace ropewalk::executor
