#include "executor/host/slot_readers.h"

#include <algorithm>
#include <atomic>

namespace ropewalk::executor {

const SlotReaders::Slot& SlotReaders::next_of(const SendEnd& owner) const noexcept {
  return slots_[static_cast<std::size_t>(owner.lent_slots)]
               [owner.published & (owner.shape.slots - 1)];
}

bool SlotReaders::has_consumed(const Reader& reader) noexcept {
  SendEnd& end = *reader.end;
  if (end.consumed_seen >= reader.chunk) return true;
  end.consumed_seen = std::atomic_ref(*end.consumed_at).load(std::memory_order_acquire);
  return end.consumed_seen >= reader.chunk;
}

void SlotReaders::add(SendEnd& owner, SendEnd& reader) {
  if (owner.lent_slots < 0) {
    owner.lent_slots = static_cast<std::int32_t>(slots_.size());
    slots_.emplace_back(owner.shape.slots);
  }
  auto& slot =
      slots_[static_cast<std::size_t>(owner.lent_slots)][owner.published & (owner.shape.slots - 1)];
  if (slot.chunk != owner.published + 1) {
    slot.chunk = owner.published + 1;
    slot.readers.clear();
  }
  slot.readers.push_back({&reader, reader.published + 1});
}

bool SlotReaders::room(const SendEnd& owner) const noexcept {
  return std::ranges::all_of(next_of(owner).readers, has_consumed);
}

std::vector<int> SlotReaders::awaited(const SendEnd& owner) const {
  std::vector<int> ranks;
  if (owner.lent_slots < 0) return ranks;
  for (const Reader& reader : next_of(owner).readers) {
    if (!has_consumed(reader)) ranks.push_back(reader.end->peer);
  }
  return ranks;
}

}  // namespace ropewalk::executor
