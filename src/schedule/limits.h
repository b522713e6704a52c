// How large a schedule may be. Beyond these, parse() and compile() refuse and check() reports, so
// that a short text or a small request cannot take all memory.
#pragma once

#include <cstddef>

namespace ropewalk::schedule {

inline constexpr int kMaxRanks = 65536;
inline constexpr int kMaxChannels = 1024;
inline constexpr int kMaxWeight = 1'000'000;
inline constexpr std::size_t kMaxSteps = std::size_t{16} << 20;
inline constexpr int kMaxBlocks = 1 << 26;  ///< units times parts

}  // namespace ropewalk::schedule
