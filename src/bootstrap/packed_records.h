// Records of ranks in fewer bytes: each as its difference from the one before.
//
// What ranks tell each other of themselves (their settings, host, processors) is nearly the same
// for all of them, and every rank gets all of it, encrypted: of 1,024 ranks that join, 450 MB.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace ropewalk::bootstrap {

/// The most that a packed record takes beyond its bytes, the first one's length included.
inline constexpr std::size_t kMostPackedMore = 16;

/// @pre `records` holds whole ones, of `bytes_each`
[[nodiscard]] std::vector<std::byte> pack_records(std::span<const std::byte> records,
                                                  std::size_t bytes_each);

/// @return false where `packed` is not of so many records of `bytes_each`; `records` may be changed
/// then
[[nodiscard]] bool unpack_records(std::span<const std::byte> packed, std::span<std::byte> records,
                                  std::size_t bytes_each);

}  // namespace ropewalk::bootstrap
