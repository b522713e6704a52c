// The two ends of a link as plain data: where its memory and its counters are, and how far this end
// is. The same for host threads (walker.h), CUDA blocks (block/staged_walk.h, block/flagged_walk.h)
// and what moves network links (link/network_link.h).
//
// A host thread works on an end where it lies. A block works on a copy that comes with its program
// (block/launch.h); between launches the counters are `kept` in device memory, so that a captured
// graph is replayed with no work on the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "executor/fifo.h"

namespace ropewalk::executor {

/// What the writer counts: chunks, or rounds where data carries its flags.
struct SendCounters {
  std::uint64_t published = 0;      ///< written so far
  std::uint64_t consumed_seen = 0;  ///< last known value of `*consumed_at`
  std::uint64_t drain_to = 0;       ///< the last one that must be consumed before the call ends
};
struct ReceiveCounters {
  std::uint64_t received = 0;  ///< consumed so far
};

/// The writer's end.
struct alignas(16) SendEnd : SendCounters {
  std::byte* memory = nullptr;  ///< of the link (fifo.h), as the writer reaches it
  std::uint64_t* consumed_at =
      nullptr;  ///< where the reader counts: fifo.h's, or in a GPU's memory
  FifoShape shape;
  std::int32_t peer = -1;
  std::int32_t process = 0;      ///< the reader's pid, if this rank may write its memory; else 0
  bool address_allowed = false;  ///< the reader can reach this rank's memory
  bool offered = false;          ///< chunks that this rank may help to copy are in flight
  bool drain_all = false;        ///< a call ends only when every chunk is consumed (network)
  bool in_process = false;       ///< blocks: the reader's GPU is of a rank of this process
  bool always_staged = false;    ///< blocks: nothing goes by address, whatever the reader can reach
  std::int32_t lent_slots = -1;  ///< host threads: of host/slot_readers.h; -1: nobody else reads
  std::uint64_t* posts = nullptr;  ///< blocks, ll over a network: block/posts.h; else null
  SendCounters* kept = nullptr;    ///< blocks
  // Blocks, of the call at work: the reader's addresses of this rank's buffers minus its own.
  std::int64_t input_shift = 0;
  std::int64_t output_shift = 0;
  /// Network links with headers before slots (FifoShape::interleaved): where slot 0 lies when slots
  /// are not in `memory` but in the GPU's, one behind the other; else null.
  std::byte* slots = nullptr;

  /// The link lies in `to`, with the reader's counter in its first line.
  void lie_in(std::byte* to, const FifoShape& with) noexcept {
    memory = to;
    consumed_at = reinterpret_cast<std::uint64_t*>(to);
    shape = with;
  }
  [[nodiscard]] RW_HOST_DEVICE SlotHeader* header(std::uint64_t chunk) const noexcept {
    return reinterpret_cast<SlotHeader*>(memory + shape.header_offset(chunk));
  }
  [[nodiscard]] RW_HOST_DEVICE std::byte* data(std::uint64_t chunk,
                                               std::size_t bytes) const noexcept {
    // Other links are not asked: of a link in a host's memory this is in every chunk's way.
    if (shape.interleaved && slots != nullptr) {
      return slots + std::size_t{(chunk - 1) & (shape.slots - 1)} * shape.slot_bytes;
    }
    return memory + shape.data_offset(chunk, bytes);
  }
};

/// The reader's end.
struct alignas(16) ReceiveEnd : ReceiveCounters {
  std::byte* memory = nullptr;
  std::uint64_t* consumed_at = nullptr;  ///< where this rank counts
  FifoShape shape;
  std::int32_t peer = -1;
  /// Writer's process for kAddress: 0 is this process, else its pid. Blocks: 0, as the writer
  /// translates addresses.
  std::int32_t process = 0;
  ReceiveCounters* kept = nullptr;  ///< blocks
  /// Where the next chunk's data is wanted, if it is staged and has this size: what moves a network
  /// link may put it there at once, and say so by kAddress. Null: in its slot.
  std::byte* destination = nullptr;
  std::size_t destination_bytes = 0;
  bool waited = false;  ///< the next chunk was looked for before it was there

  /// As SendEnd's.
  void lie_in(std::byte* to, const FifoShape& with) noexcept {
    memory = to;
    consumed_at = reinterpret_cast<std::uint64_t*>(to);
    shape = with;
  }
  [[nodiscard]] RW_HOST_DEVICE SlotHeader* header(std::uint64_t chunk) const noexcept {
    return reinterpret_cast<SlotHeader*>(memory + shape.header_offset(chunk));
  }
  [[nodiscard]] RW_HOST_DEVICE std::byte* data(std::uint64_t chunk,
                                               std::size_t bytes) const noexcept {
    return memory + shape.data_offset(chunk, bytes);
  }
};

}  // namespace ropewalk::executor
