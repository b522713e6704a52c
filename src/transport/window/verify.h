// The pattern that a new connection moves over each of its ways.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/checksum.h"
#include "transport/window/mailbox.h"

namespace ropewalk::transport::window {

inline constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 40;

inline constexpr std::size_t kPatternBytes = 4096;
/// At the start and the end of the bounce ring.
inline constexpr std::size_t kPatternCopies = 2;
constexpr std::size_t pattern_offset(std::size_t copy) {
  return kBounceOffset + (copy == 0 ? 0 : kBounceBytes - kPatternBytes);
}

/// A message's checksum; 0 stands for "none was made".
inline std::uint64_t wire_checksum(const void* data, std::size_t bytes) noexcept {
  const std::uint64_t sum = checksum(data, bytes);
  return sum == 0 ? 1 : sum;
}

}  // namespace ropewalk::transport::window
