// Slots that several ranks read.
//
// What a step sends to several ranks of a host is written into the slot of one of the links, its
// *owner*; the headers of the others say where it lies (SlotKind::kElsewhere). The writer copies
// once instead of once for each, and uses the slot again when all readers have consumed it. So it
// waits for more than the schedule's checker knows of; comm/prepared.cc says where that is safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/link_end.h"

namespace ropewalk::executor {

/// Of one writer: who still reads its slots, beside the readers of the links that own them.
///
/// Threads: one at a time.
class SlotReaders {
 public:
  /// The next chunk of `reader` is the next one of `owner`, in a slot that is no short one.
  /// @pre both outlive this, and there is room(owner)
  void add(SendEnd& owner, SendEnd& reader);

  /// Whether nobody reads the slot of the next chunk of `owner` any more.
  [[nodiscard]] bool room(const SendEnd& owner) const noexcept;

  /// The ranks that room() waits for.
  [[nodiscard]] std::vector<int> awaited(const SendEnd& owner) const;

 private:
  struct Reader {
    SendEnd* end = nullptr;
    std::uint64_t chunk = 0;
  };
  struct Slot {
    std::uint64_t chunk = 0;  // the owner's
    std::vector<Reader> readers;
  };
  [[nodiscard]] const Slot& next_of(const SendEnd& owner) const noexcept;
  static bool has_consumed(const Reader& reader) noexcept;

  std::vector<std::vector<Slot>> slots_;  // by SendEnd::lent_slots
};

}  // namespace ropewalk::executor
