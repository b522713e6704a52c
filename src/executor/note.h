// A note that ranks pass on to each other with the chunks that they send anyway, about later calls
// (comm/agreed_chunks.h): the top byte of CallTag::count, which no count needs.
//
// It is only in the tags of chunks between host threads, and no part of what ranks were called
// with.
#pragma once

#include <cstdint>

#include "executor/fifo.h"

namespace ropewalk::executor {

inline constexpr unsigned kNoteShift = 56;

/// 0: none.
inline std::uint8_t note_of(const CallTag& tag) noexcept {
  return static_cast<std::uint8_t>(tag.count >> kNoteShift);
}

inline CallTag without_note(CallTag tag) noexcept {
  tag.count &= (std::uint64_t{1} << kNoteShift) - 1;
  return tag;
}

inline CallTag with_note(const CallTag& tag, std::uint8_t note) noexcept {
  CallTag noted = without_note(tag);
  noted.count |= std::uint64_t{note} << kNoteShift;
  return noted;
}

}  // namespace ropewalk::executor
