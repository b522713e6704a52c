// Comparison of secrets.
#pragma once

#include <array>
#include <cstddef>

namespace ropewalk {

/// In constant time, so that a stranger cannot guess it byte by byte.
template <std::size_t kBytes>
[[nodiscard]] bool same_secret(const std::array<std::byte, kBytes>& a,
                               const std::array<std::byte, kBytes>& b) noexcept {
  std::byte difference{};
  for (std::size_t i = 0; i < kBytes; ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{};
}

}  // namespace ropewalk
