// A step at work in a block of threads: what its threads hand to each other (staged_walk.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "executor/call.h"

namespace ropewalk::executor {

/// Steps that are at work at once in a block (staged_walk.h).
inline constexpr std::uint32_t kStages = 7;
inline constexpr std::uint32_t kStageBarriers = 2 * kStages;

/// A word to be stored for a peer when a step is done; none when `at` is null.
struct Notice {
  std::uint64_t* at = nullptr;
  std::uint64_t number = 0;
};

/// A step in progress. The block shares the arrays and their contents.
struct alignas(16) BlockStage {
  Source* sources = nullptr;
  Destination* destinations = nullptr;
  Notice* publications = nullptr;  ///< of the links that it sends to
  Notice* releases = nullptr;      ///< of its operands
  Transfer transfer;
  std::uint32_t num_publications = 0;
  std::uint32_t num_releases = 0;
  bool stopped = false;  ///< nothing may be moved or told
  bool last = false;     ///< no step: the list is done
  // Counted from the first step of this stage on.
  std::uint32_t moved = 0;  ///< warps of movers that were done with a step
  std::uint32_t told = 0;   ///< steps that were told
};

/// Memory of the stages of a block, for steps with at most this number of operands and sends.
RW_HOST_DEVICE constexpr std::size_t stage_bytes(std::uint32_t operands, std::uint32_t sends) {
  return kStages * (sizeof(BlockStage) + operands * (sizeof(Source) + sizeof(Notice)) +
                    (sends + 1) * (sizeof(Destination) + sizeof(Notice)));
}
/// Lays them out in `memory`, aligned to 16. By one thread.
RW_HOST_DEVICE inline BlockStage* lay_stages(std::byte* memory, std::uint32_t operands,
                                             std::uint32_t sends) {
  auto* stages = reinterpret_cast<BlockStage*>(memory);
  memory += kStages * sizeof(BlockStage);
  const auto take = [&](std::size_t bytes) {
    std::byte* begin = memory;
    memory += bytes;
    return begin;
  };
  for (std::uint32_t i = 0; i < kStages; ++i) {
    BlockStage stage;
    stage.sources = reinterpret_cast<Source*>(take(operands * sizeof(Source)));
    stage.releases = reinterpret_cast<Notice*>(take(operands * sizeof(Notice)));
    stage.destinations = reinterpret_cast<Destination*>(take((sends + 1) * sizeof(Destination)));
    stage.publications = reinterpret_cast<Notice*>(take((sends + 1) * sizeof(Notice)));
    stages[i] = stage;
  }
  return stages;
}

}  // namespace ropewalk::executor
