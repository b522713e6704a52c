// The copy of data that has come into the buffer of a receive.
#pragma once

#include <cstddef>
#include <cstring>

#include "core/copy_in_order.h"

namespace ropewalk::transport {

/// The most that a receive's buffer has when somebody may read it before the receive is finished:
/// NCCL's slots of LL128 have 600 KiB. One memcpy of a larger one takes a tenth less.
inline constexpr std::size_t kMostReadEarly = std::size_t{640} << 10U;

/// Copies `bytes` bytes into a receive's buffer, which has `room` in all: in order where somebody
/// may look for the flags in it.
inline void copy_to_receive(void* to, const void* from, std::size_t bytes,
                            std::size_t room) noexcept {
  if (bytes == 0) return;
  if (room <= kMostReadEarly) {
    copy_in_order(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace ropewalk::transport
