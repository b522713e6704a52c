// How a chunk is put into a FIFO and taken out of it (executor/fifo.h), for every team whose links
// have headers.
//
// Threads: one at a time per end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/call.h"
#include "executor/fifo.h"

namespace ropewalk::executor {

/// Where the data of the next chunk of `link` is. Calls the team's mismatch() or wrong_size() if
/// the two ends issued different calls or cut their data differently.
/// @pre the chunk has arrived
template <typename Team, typename End>
RW_HOST_DEVICE Source arrived_chunk(Team& team, const End& link, const Call& call,
                                    std::size_t bytes) {
  const std::uint64_t chunk = link.received + 1;
  const SlotHeader* slot = link.header(chunk);
  if (call.check_tags && !(slot->tag == call.tag)) team.mismatch(link.peer, slot->tag, call);
  if (slot->bytes != bytes) team.wrong_size(link.peer, slot->bytes, bytes);
  Source source;
  if (slot->kind == SlotKind::kInline) {
    source.data = slot->inline_data;
  } else if (slot->kind == SlotKind::kStaged) {
    source.data = link.data(chunk, bytes);
  } else if (slot->kind == SlotKind::kAddress) {
    if (link.process == 0) {
      source.data = reinterpret_cast<const std::byte*>(slot->address);
    } else {
      source.remote = slot->address;
      source.process = link.process;
    }
  } else {
    // No block's link has such chunks.
#if !defined(__CUDA_ARCH__)
    source.data = link.memory + static_cast<std::int64_t>(slot->address);
#endif
  }
  return source;
}

/// Describes the next chunk of `link`: it is at `given`, or will be where the result says.
/// @pre there is room for it
template <typename Team, typename End>
RW_HOST_DEVICE Destination describe_chunk(Team& team, End& link, const Call& call,
                                          std::size_t bytes, const std::byte* given) {
  const std::uint64_t chunk = link.published + 1;
  SlotHeader* slot = link.header(chunk);
  copy_tag(slot->tag, call.tag, call.tag.call);
  slot->bytes = static_cast<std::uint32_t>(bytes);
  if (link.drain_all) link.drain_to = chunk;
  if (given != nullptr) {
    slot->kind = SlotKind::kAddress;
    slot->address = reinterpret_cast<std::uint64_t>(given);
    link.drain_to = chunk;
    return Destination{};
  }
  if (bytes <= kInlineBytes) {
    slot->kind = SlotKind::kInline;
    return Destination{slot->inline_data};
  }
  // Chunks that are larger than a slot are cut only where all go by address.
  if (bytes > link.shape.slot_bytes) team.wrong_size(link.peer, bytes, link.shape.slot_bytes);
  slot->kind = SlotKind::kStaged;
  return Destination{link.data(chunk, bytes)};
}

/// Describes the next chunk of `link`: it will be the next one of `owner`, which was described, and
/// whose memory all ranks of the host reach at the same distance from that of `link`.
template <typename End>
void describe_elsewhere(End& link, const Call& call, std::size_t bytes, const End& owner) {
  SlotHeader* slot = link.header(link.published + 1);
  copy_tag(slot->tag, call.tag, call.tag.call);
  slot->bytes = static_cast<std::uint32_t>(bytes);
  slot->kind = SlotKind::kElsewhere;
  slot->address = static_cast<std::uint64_t>(owner.data(owner.published + 1, bytes) - link.memory);
}

}  // namespace ropewalk::executor
