// The memory of links between GPUs, which write each other's windows.
//
// As executor/fifo.h, but that `consumed` lies with the writer, so that each end waits on its own
// memory only, and that there are two more protocols (executor/protocol.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "executor/fifo.h"
#include "executor/protocol.h"

namespace ropewalk::executor {

/// Slots of a link whose data carries its flags (flagged_walk.h says why this many).
inline constexpr std::uint32_t kFlaggedSlots = 4;
inline constexpr std::uint32_t kLineWords = 15;  ///< of eight bytes, in a line of ll128
inline constexpr std::size_t kLine128Bytes = 128;

/// Bytes that a slot of `slot_bytes` of data takes in a link's memory. For ll128, slot_bytes is a
/// multiple of kLineWords words.
RW_HOST_DEVICE constexpr std::size_t flagged_bytes(Protocol protocol, std::size_t slot_bytes) {
  return protocol == Protocol::kLl ? 2 * slot_bytes
                                   : slot_bytes / (std::size_t{8} * kLineWords) * kLine128Bytes;
}

/// Bytes of memory that a link takes in the reader's window.
RW_HOST_DEVICE constexpr std::size_t link_bytes(Protocol protocol, const FifoShape& shape) {
  return protocol == Protocol::kSimple ? shape.bytes()
                                       : shape.slots * flagged_bytes(protocol, shape.slot_bytes);
}

/// What stands beside the data of round `round` of a link; never 0. Slots are used again only after
/// kFlaggedSlots rounds, so a flag from an earlier turn is another number.
RW_HOST_DEVICE constexpr std::uint32_t flag_of(std::uint32_t round) { return round | 0x80000000U; }

}  // namespace ropewalk::executor
