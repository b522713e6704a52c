// The pattern that a new connection moves by each of its methods.
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

inline constexpr std::size_t kChecksumPieceBytes = std::size_t{1} << 20;

/// A checksum of what may lie in the CPU's memory at one end and in a device's at the other: of
/// what is no longer than a piece wire_checksum's; of more, that of the pieces' checksums.
std::uint64_t host_checksum(const void* data, std::size_t bytes);
std::uint64_t device_checksum(DeviceCopies& device, const void* data,
                              const Registration& registration, std::size_t bytes);

}  // namespace ropewalk::transport::window
