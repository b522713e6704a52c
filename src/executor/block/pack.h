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
/// PackedPrograms, for protocol simple.
PackedPrograms pack(const std::vector<Program>& programs);
/// FlaggedPrograms, for the others.
PackedPrograms pack_flagged(const std::vector<Program>& programs);

}  // namespace ropewalk::executor
