// How blocks tell what moves their network links which data of a round is coming, where data
// carries its flags (ll): for each chunk a word in the link's memory, stored with no fence before
// the data. Who reads it then waits for the flags of that many bytes.
//
// Round n of a link uses the words [(n - 1) % kFlaggedSlots][chunk].
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "executor/block/links.h"

namespace ropewalk::executor {

/// Chunks that a round may send over a network link.
inline constexpr std::uint32_t kMostPosts = 64;
inline constexpr std::size_t kPostsBytes = sizeof(std::uint64_t) * kMostPosts * kFlaggedSlots;

struct Post {
  std::uint32_t flag = 0;    ///< of the round (links.h)
  std::uint32_t bytes = 0;   ///< of data, below 2^14
  std::uint32_t offset = 0;  ///< of its lines in the slot, below 2^14; a multiple of a line
  bool last = false;         ///< of the round

  /// @param round or its flag
  RW_HOST_DEVICE static std::size_t index(std::uint64_t round, std::uint32_t chunk) noexcept {
    return static_cast<std::size_t>((round - 1) % kFlaggedSlots) * kMostPosts + chunk;
  }
  [[nodiscard]] RW_HOST_DEVICE std::uint64_t word() const noexcept {
    return flag | std::uint64_t{bytes} << 32U | std::uint64_t{offset} << 46U |
           std::uint64_t{last} << 63U;
  }
  RW_HOST_DEVICE static Post of(std::uint64_t word) noexcept {
    Post post;
    post.flag = static_cast<std::uint32_t>(word);
    post.bytes = static_cast<std::uint32_t>(word >> 32U) & 0x3fffU;
    post.offset = static_cast<std::uint32_t>(word >> 46U) & 0x3fffU;
    post.last = word >> 63U != 0;
    return post;
  }
};

}  // namespace ropewalk::executor
