// A Program as one piece of memory, for blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/block/launch.h"
#include "executor/program.h"

namespace ropewalk::executor {

/// Packs the programs of all channels of one rank, each `stride` bytes.
struct PackedPrograms {
  std::vector<std::byte> bytes;
  std::uint32_t stride = 0;        ///< LaunchArgs::program_bytes
  std::uint32_t max_operands = 0;  ///< of any step
  std::uint32_t max_sends = 0;
};
PackedPrograms pack(const std::vector<Program>& programs);

}  // namespace ropewalk::executor
