// Bytes for tests to move and to compare.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ropewalk::testing {

/// Fills `bytes` bytes at `data` with pseudo-random numbers: another sequence for each seed, so
/// that a byte at a wrong place, or of another message, is found by comparing with memcmp.
///
/// Eight bytes at a time by plain pointers: one at a time through a container's iterators took more
/// than half of the transports' tests under a sanitizer, without optimization.
inline void fill_pattern(void* data, std::size_t bytes, std::uint64_t seed) noexcept {
  auto* at = static_cast<unsigned char*>(data);
  // splitmix64
  std::uint64_t state = seed * 0xd1342543de82ef95U;
  while (bytes > 0) {
    state += 0x9e3779b97f4a7c15U;
    std::uint64_t word = state;
    word = (word ^ word >> 30U) * 0xbf58476d1ce4e5b9U;
    word = (word ^ word >> 27U) * 0x94d049bb133111ebU;
    word ^= word >> 31U;
    const std::size_t part = bytes < sizeof word ? bytes : sizeof word;
    std::memcpy(at, &word, part);
    at += part;
    bytes -= part;
  }
}

}  // namespace ropewalk::testing
