// A fast checksum against corrupting links; no cryptography.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ropewalk::transport {

/// 64 bits that depend on every byte and on its position. Four lanes of 8 bytes each are multiplied
/// and rotated independently, so the loop runs at about the speed of a copy.
std::uint64_t checksum(const void* data, std::size_t bytes) noexcept;

}  // namespace ropewalk::transport
