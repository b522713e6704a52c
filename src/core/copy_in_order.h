// A copy whose bytes become visible in the order of their addresses, line by line.
//
// For buffers that somebody reads while they are written: NCCL's protocol LL128 looks for a flag in
// the last 8 bytes of each line of 128, and takes the other 120 as there when it sees it. memcpy
// promises nothing of the kind, and glibc's for x86-64 stores a buffer's first bytes last.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace ropewalk {

inline constexpr std::size_t kOrderedLine = 128;
inline constexpr std::size_t kOrderedData = 120;  ///< of them; the flag is in the rest

/// How a copy is cut: each piece is stored before those that follow, and none holds both data of a
/// line and its last 8 bytes, since memcpy stores a piece in any order.
struct OrderedPieces {
  std::array<std::size_t, 2> head{};  ///< bytes up to a line's last 8, and of these; may be 0
  std::size_t lines = 0;              ///< whole ones, each of which is cut likewise
  std::array<std::size_t, 2> tail{};
};

/// The pieces of `bytes` bytes that begin `within` bytes behind the start of a line.
/// @pre within < kOrderedLine
constexpr OrderedPieces ordered_pieces(std::size_t within, std::size_t bytes) noexcept {
  OrderedPieces pieces;
  if (within != 0) {
    if (within < kOrderedData) pieces.head[0] = std::min(kOrderedData - within, bytes);
    const std::size_t at = within + pieces.head[0];
    pieces.head[1] = std::min(kOrderedLine - at, bytes - pieces.head[0]);
  }
  const std::size_t rest = bytes - pieces.head[0] - pieces.head[1];
  pieces.lines = rest / kOrderedLine;
  pieces.tail[0] = std::min(rest % kOrderedLine, kOrderedData);
  pieces.tail[1] = rest % kOrderedLine - pieces.tail[0];
  return pieces;
}

/// Copies so that another thread that sees the last 8 bytes of an aligned line of 128 bytes of
/// `destination` sees the bytes before it, of this line and of all lines before. Takes about the
/// time of memcpy. The two do not overlap.
void copy_in_order(void* destination, const void* source, std::size_t bytes) noexcept;

}  // namespace ropewalk
