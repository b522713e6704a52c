// A copy whose bytes become visible in the order of their addresses, line by line.
//
// For buffers that somebody reads while they are written: NCCL's protocol LL128 looks for a flag in
// the last 8 bytes of each line of 128, and takes the other 120 as there when it sees it. memcpy
// promises nothing of the kind, and glibc's for x86-64 stores a buffer's first bytes last.
#pragma once

#include <cstddef>

namespace ropewalk {

/// Copies so that another thread that sees the last 8 bytes of an aligned line of 128 bytes of
/// `destination` sees the bytes before it, of this line and of all lines before. Takes about the
/// time of memcpy. The two do not overlap.
void copy_in_order(void* destination, const void* source, std::size_t bytes) noexcept;

}  // namespace ropewalk
