// The links of a block of threads: FIFOs between GPUs that write each other's memory.
//
// As executor/fifo.h, with two differences that a GPU asks for. `consumed` lies with the writer, so
// that each end waits on its own memory only. And there are two more protocols:
//
//   simple  headers and slots as in fifo.h: data first, then a flag after a fence. For long chunks.
//   ll128   as ll, in lines of 128 bytes: 15 words of data and one of flag, written at once by the
//           eight threads that hold them. 15/16 of the bandwidth at nearly the latency of ll, where
//           lines of 128 bytes arrive whole: over NVLink and within a GPU. (NCCL's LL128.)
//   ll      every eight bytes of data travel in a line of sixteen, {4 data, flag, 4 data, flag}: a
//           line is there when both its flags are the chunk's number, so data and flag are one
//           flight and no fence is needed. Half the bandwidth at the least latency. (NCCL's LL;
//           lines are written and read in two halves of eight bytes, which no machine tears.)
//
// The ends are plain data in device memory: a captured graph is replayed with no work on the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "executor/fifo.h"

namespace ropewalk::executor {

enum class Protocol : std::uint8_t { kSimple, kLl, kLl128 };
inline constexpr int kNumProtocols = 3;

/// "simple", "ll", "ll128".
constexpr const char* name(Protocol protocol) {
  constexpr const char* kNames[] = {"simple", "ll", "ll128"};
  return kNames[static_cast<std::size_t>(protocol)];
}

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

/// The writer's end; the names are SendEnd's.
struct alignas(16) BlockSendEnd {
  std::byte* memory = nullptr;                 ///< the link, in the reader's window
  const std::uint64_t* consumed_at = nullptr;  ///< in this rank's memory; the reader writes it
  FifoShape shape;
  std::int32_t peer = -1;
  bool address_allowed = false;
  bool drain_all = false;
  std::uint64_t published = 0;  ///< chunks; rounds, where data carries its flags
  std::uint64_t consumed_seen = 0;
  std::uint64_t drain_to = 0;
  // Of the call at work, as Reach has them.
  std::int64_t input_shift = 0;
  std::int64_t output_shift = 0;

  [[nodiscard]] RW_HOST_DEVICE SlotHeader* header(std::uint64_t chunk) const noexcept {
    return reinterpret_cast<SlotHeader*>(memory + shape.header_offset(chunk));
  }
  [[nodiscard]] RW_HOST_DEVICE std::byte* data(std::uint64_t chunk) const noexcept {
    return memory + shape.data_offset(chunk);
  }
};

/// The reader's end; the names are ReceiveEnd's.
struct alignas(16) BlockReceiveEnd {
  std::byte* memory = nullptr;           ///< the link, in this rank's window
  std::uint64_t* consumed_at = nullptr;  ///< in the writer's memory
  FifoShape shape;
  std::int32_t peer = -1;
  std::int32_t process = 0;  ///< addresses are translated by the writer: always as in this process
  std::uint64_t received = 0;  ///< the same

  [[nodiscard]] RW_HOST_DEVICE SlotHeader* header(std::uint64_t chunk) const noexcept {
    return reinterpret_cast<SlotHeader*>(memory + shape.header_offset(chunk));
  }
  [[nodiscard]] RW_HOST_DEVICE std::byte* data(std::uint64_t chunk) const noexcept {
    return memory + shape.data_offset(chunk);
  }
};

}  // namespace ropewalk::executor
