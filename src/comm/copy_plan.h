// Collectives that only move data, as copies straight from each rank's input into the others'
// outputs: which they are, and which copies a rank makes. Pure; cuda/copy_engines.h makes them.
//
// Only outputs must be reached by other ranks. Where a rank's output lies tells where those of the
// others lie if all ranks registered the memory as symmetric and use it alike. So gather and
// scatter are not among them: not all ranks have an output, or in place it lies elsewhere on the
// root.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "comm/collective_call.h"

namespace ropewalk::comm {

/// As records and reports name them beside the schedules' algorithms.
inline constexpr std::string_view kCopyEnginesName = "copy_engines";

/// From so many bytes for each peer on COPY_ENGINES=auto uses them: on two H200 a copy engine gives
/// 388 GB/s over NVLink where kernels' stores give 362 (benchmarks/results/p2p-2xh200.txt), so that
/// at this length it saves a microsecond or two: what the two handshakes take.
inline constexpr std::size_t kLeastCopiedBytes = std::size_t{4} << 20;

/// The same for messages, whose kernels wait for less: one way copies of up to 1 MiB take 11 to 17
/// us longer, and those of 512 MiB move 390 GB/s where kernels move 367
/// (benchmarks/results/messages-copied-2xh200.txt).
inline constexpr std::size_t kLeastCopiedMessage = std::size_t{128} << 20;

/// All-gathers, all-to-alls and broadcasts.
[[nodiscard]] bool made_of_copies(Collective collective) noexcept;

/// What a rank sends to each other one. @pre made_of_copies(call.collective)
[[nodiscard]] std::size_t bytes_for_peer(const CollectiveCall& call) noexcept;

/// One copy by a rank.
struct RankCopy {
  int peer = -1;  ///< in whose output; its own too
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

/// Those that `rank` makes in a call: for its peers, each rank beginning with the next one, so that
/// no two ranks begin with the same; then for itself, unless the data is there already.
/// @param outputs by rank: where this rank reaches its output
/// @pre made_of_copies(call.collective)
[[nodiscard]] std::vector<RankCopy> copies_of(const CollectiveCall& call, int rank,
                                              const std::vector<std::byte*>& outputs);

}  // namespace ropewalk::comm
