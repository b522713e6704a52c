// A link in memory: a bounded FIFO of slots from one rank to another, with one writer and one
// reader.
//
// The same bytes serve every kind of link. Ranks that share memory write and read them directly;
// for a network link each end has a copy and a transport moves slots between the two. On a host the
// two ends are threads or processes, on a GPU they are blocks. link_end.h has each end's view of
// the link.
//
// Memory of a link, in lines of 64 bytes:
//
// - line 0: `consumed`, the chunks that the reader is done with, which only the reader writes, and
//   the reader's word of host/lending.h
// - line 1: the desk of host/shared_copy.h; in its last word the writer's of host/lending.h
// - headers: a SlotHeader each, two lines
// - short slots: short_bytes of data each
// - slots: slot_bytes of data each
//
// Chunk n (counted from 1 over the life of the link) is described by header (n - 1) % headers;
// where it is staged, its data is in short slot (n - 1) % short_slots, or if it is longer than that
// in slot (n - 1) % slots. The writer fills both, then stores `sequence` = n with release; the
// reader waits for it with acquire. So a pair of cache lines carries flag, description and, up to
// kInlineBytes, the data itself. There are more headers and short slots than slots: many short
// messages may be in flight, while the data of long ones stays in few slots, and so in the
// caches. The writer may use a header or slot again once `consumed` has reached the chunk that lay
// there before; it re-reads that line only when it knows of none free.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"

namespace ropewalk::executor {

inline constexpr std::size_t kLineBytes = 64;
// A header is a pair of lines. Data short enough to fit into it needs no slot, so that many short
// messages can be in flight.
inline constexpr std::size_t kInlineBytes = 96;
inline constexpr std::size_t kHeaderBytes = 2 * kLineBytes;

/// Where a chunk's data is.
enum class SlotKind : std::uint8_t {
  kInline,     ///< in the header itself
  kStaged,     ///< in a slot, a short one where it fits there
  kAddress,    ///< in the writer's memory, at `address`; it stays there until the chunk is consumed
  kElsewhere,  ///< in a slot of another link of the writer's, `address` bytes from this one's
               ///< memory
};

/// The arguments of a rank's call. They must be equal at both ends of a link; a difference is an
/// error of the caller, which is reported by name. Sent with every chunk, since it costs nothing
/// there.
struct CallTag {
  std::uint64_t count = 0;
  std::uint32_t call = 0;  ///< number of the call on this communicator, modulo 2^32; 0 for sends
  std::uint16_t root = 0;  ///< root of a collective that has one, else 0
  std::uint8_t collective = 0;   ///< Collective, kByCopyEngines with it; kPointToPoint; kBarrier
  std::uint8_t type_and_op = 0;  ///< DataType or CarriedType, and RedOp << kTagTypeBits
  friend bool operator==(const CallTag&, const CallTag&) = default;
};
static_assert(sizeof(CallTag) == 2 * sizeof(std::uint64_t));

/// Copies a tag by two words, and with another number in place of `call`. A tag is copied several
/// times in each call, right after its number was set: one load of both words would have to wait
/// until the store of the number has left the store buffer, 5 ns, and longer behind stores to lines
/// that another core has.
RW_HOST_DEVICE inline void copy_tag(CallTag& to, const CallTag& from, std::uint32_t number) {
#if defined(__CUDA_ARCH__)
  to = from;
  if (number != from.call) to.call = number;
#else
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  __builtin_memcpy(&first, &from.count, sizeof first);
  __builtin_memcpy(&second, &from.call, sizeof second);
  constexpr std::uint64_t kNumber = 0xffff'ffff;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  second = (second & ~kNumber) | number;
#else
  second = (second & kNumber) | (std::uint64_t{number} << 32U);
#endif
  // The compiler would make one load of the two.
  asm("" : "+r"(first), "+r"(second));
  __builtin_memcpy(&to.count, &first, sizeof first);
  __builtin_memcpy(&to.call, &second, sizeof second);
#endif
}

inline constexpr std::uint8_t kPointToPoint = 0x40;
inline constexpr std::uint8_t kBarrier = 0x41;  ///< the rest of the tag says nothing
/// With a Collective: copy engines carry it (block/handshake.h), which all ranks must agree on.
inline constexpr std::uint8_t kByCopyEngines = 0x80;
inline constexpr unsigned kTagTypeBits = 5;

struct alignas(kHeaderBytes) SlotHeader {
  std::uint64_t sequence;  ///< stored last (release), read first (acquire)
  CallTag tag;
  SlotKind kind;
  std::uint32_t bytes;  ///< of the chunk
  union {
    std::byte inline_data[kInlineBytes];
    std::uint64_t address;  ///< kAddress: in the writer's address space; kElsewhere: an offset
  };
};
static_assert(sizeof(SlotHeader) == kHeaderBytes);

/// Sizes of a link's memory. The counts are powers of two (or no short slots: 0), and no more slots
/// of either kind than headers.
struct FifoShape {
  std::uint32_t headers = 64;
  std::uint32_t slots = 8;
  std::uint32_t slot_bytes = 32768;
  std::uint32_t short_slots = 0;
  std::uint32_t short_bytes = 0;  ///< 0 without short slots
  /// From one short slot to the next, in whole lines. Where they lie close together, a reader's
  /// hardware fetches lines of the next one while the writer writes it.
  std::uint32_t short_stride = 0;
  /// Each header directly before its slot (headers == slots), so that a transport can send both as
  /// one piece.
  bool interleaved = false;

  [[nodiscard]] RW_HOST_DEVICE std::size_t header_stride() const noexcept {
    return interleaved ? sizeof(SlotHeader) + slot_bytes : sizeof(SlotHeader);
  }
  [[nodiscard]] RW_HOST_DEVICE std::size_t header_offset(std::uint64_t chunk) const noexcept {
    const std::uint64_t index = (chunk - 1) & (headers - 1);
    // Spelled out, because a product with a constant is a shift.
    if (!interleaved) return 2 * kLineBytes + index * sizeof(SlotHeader);
    return 2 * kLineBytes + index * header_stride();
  }
  /// Of a staged chunk of `bytes`.
  [[nodiscard]] RW_HOST_DEVICE std::size_t data_offset(std::uint64_t chunk,
                                                       std::size_t bytes) const noexcept {
    if (interleaved) return header_offset(chunk) + sizeof(SlotHeader);
    if (bytes <= short_bytes) {
      return short_offset() + std::size_t{(chunk - 1) & (short_slots - 1)} * short_stride;
    }
    return short_offset() + std::size_t{short_slots} * short_stride +
           ((chunk - 1) & (slots - 1)) * slot_bytes;
  }
  /// The number of chunks, the last one of `bytes`, that may be in flight.
  [[nodiscard]] RW_HOST_DEVICE std::uint32_t window(std::size_t bytes) const noexcept {
    if (bytes <= kInlineBytes) return headers;
    return bytes <= short_bytes ? short_slots : slots;
  }
  [[nodiscard]] RW_HOST_DEVICE std::size_t bytes() const noexcept {
    return short_offset() + std::size_t{short_slots} * short_stride +
           std::size_t{slots} * slot_bytes;
  }

 private:
  [[nodiscard]] RW_HOST_DEVICE std::size_t short_offset() const noexcept {
    return 2 * kLineBytes + headers * sizeof(SlotHeader);
  }
};

}  // namespace ropewalk::executor
