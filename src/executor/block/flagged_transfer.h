// How a block moves data that carries its flags (links.h): word by word of 8 bytes (ll), or in
// lines of 15 words (ll128). A block waits for a word of a link only where it needs it, and for
// nothing else.
//
// `locations` are those of the step that `shape` describes: its operands, then where its result
// goes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "executor/block/arithmetic.h"
#include "executor/block/launch.h"

namespace ropewalk::executor {

/// The first of `left` bytes, at most eight; for unaligned data and partial words.
template <typename Block>
RW_NOINLINE RW_HOST_DEVICE std::uint64_t load_bytes(Block& block, const std::byte* from,
                                                    std::uint32_t left) {
  std::uint64_t word = 0;
  for (std::uint32_t i = 0; i < 8 && i < left; ++i) {
    const auto byte = block.load_own(reinterpret_cast<const std::uint8_t*>(from) + i);
    word |= std::uint64_t{byte} << (8 * i);
  }
  return word;
}
template <typename Block>
RW_NOINLINE RW_HOST_DEVICE void store_bytes(Block& /*block*/, std::byte* to, std::uint32_t left,
                                            std::uint64_t word) {
  for (std::uint32_t i = 0; i < 8 && i < left; ++i) {
    to[i] = static_cast<std::byte>(word >> (8 * i));
  }
}

/// Word `w` of this rank's buffer of `bytes`, of which the last may be a part.
template <typename Block>
RW_HOST_DEVICE std::uint64_t load_word(Block& block, const std::byte* data, std::uint32_t w,
                                       std::uint32_t bytes) {
  const std::byte* from = data + 8 * std::size_t{w};
  const std::uint32_t left = bytes - 8 * w;
  if (reinterpret_cast<std::uintptr_t>(from) % 8 == 0 && left >= 8) {
    return block.load_own(reinterpret_cast<const std::uint64_t*>(from));
  }
  return load_bytes(block, from, left);
}
template <typename Block>
RW_HOST_DEVICE void store_word(Block& block, std::byte* data, std::uint32_t w, std::uint32_t bytes,
                               std::uint64_t word) {
  std::byte* to = data + 8 * std::size_t{w};
  const std::uint32_t left = bytes - 8 * w;
  if (reinterpret_cast<std::uintptr_t>(to) % 8 == 0 && left >= 8) {
    *reinterpret_cast<std::uint64_t*>(to) = word;
  } else {
    store_bytes(block, to, left, word);
  }
}

/// Words that a thread takes from one source after the other, and their combination.
template <typename Element, RedOp kOp, int kWords>
class Combined {
 public:
  RW_HOST_DEVICE Combined(const FlaggedShape& shape, std::uint64_t scalar)
      : arithmetic_(shape.scaled_source, shape.divisor, scalar),
        copies_(kOnlyCopied<Element> ||
                is_copy(shape.num_sources, shape.scaled_source, shape.divisor)) {}

  /// Takes `words` of source `s`.
  RW_HOST_DEVICE void take(std::uint32_t s, const std::uint64_t (&words)[kWords]) {
    RW_UNROLL
    for (int w = 0; w < kWords; ++w) values_[w].word = words[w];
    if constexpr (!kOnlyCopied<Element>) {
      if (copies_) return;
      RW_UNROLL
      for (int w = 0; w < kWords; ++w) {
        RW_UNROLL
        for (std::size_t e = 0; e < kPerWord; ++e) {
          arithmetic_.take(sums_[w][e], s, values_[w].elements[e]);
        }
      }
    }
  }
  /// The result, in place of `words`.
  RW_HOST_DEVICE void finish(std::uint64_t (&words)[kWords]) {
    if constexpr (!kOnlyCopied<Element>) {
      if (!copies_) {
        RW_UNROLL
        for (int w = 0; w < kWords; ++w) {
          RW_UNROLL
          for (std::size_t e = 0; e < kPerWord; ++e) {
            values_[w].elements[e] = arithmetic_.finish(sums_[w][e]);
          }
        }
      }
    }
    RW_UNROLL
    for (int w = 0; w < kWords; ++w) words[w] = values_[w].word;
  }

 private:
  static constexpr std::size_t kPerWord = sizeof(std::uint64_t) / sizeof(typename Element::Stored);

  const Arithmetic<Element, kOp> arithmetic_;
  const bool copies_;
  WordOf<Element> values_[kWords] = {};
  typename Element::Compute sums_[kWords][kPerWord] = {};
};

// ---- ll ---------------------------------------------------------------------------------

/// @return false when the block was told to stop
template <typename Element, RedOp kOp, typename Block>
RW_HOST_DEVICE bool transfer_ll(Block& block, const FlaggedShape& shape,
                                const FlaggedLocation* locations, std::uint64_t scalar) {
  const std::uint32_t words = (shape.bytes + 7) / 8;
  const FlaggedLocation* end = locations + shape.num_sources + shape.num_destinations;
  RW_ROLLED
  for (std::uint32_t w = block.thread(); w < words; w += block.size()) {
    Combined<Element, kOp, 1> combined(shape, scalar);
    std::uint64_t word[1] = {};
    const FlaggedLocation* next = locations;
    RW_ROLLED
    for (std::uint32_t s = 0; s < shape.num_sources; ++s) {
      const FlaggedLocation location = *next++;
      if (location.flag == 0) {
        word[0] = load_word(block, location.data, w, shape.bytes);
      } else if (!block.load_line(location.data + 16 * std::size_t{w}, location.flag, word[0])) {
        return false;
      }
      combined.take(s, word);
    }
    combined.finish(word);
    RW_ROLLED
    while (next < end) {
      const FlaggedLocation location = *next++;
      if (location.flag != 0) {
        block.store_line(location.data + 16 * std::size_t{w}, location.flag, word[0]);
      } else if (location.data != nullptr) {
        store_word(block, location.data, w, shape.bytes, word[0]);
      }
    }
  }
  return true;
}

// ---- ll128 ------------------------------------------------------------------------------

/// One line of each of `kAtOnce` (lines `stride` apart; those beyond `lines` are nothing). The
/// threads of a line go together.
/// @return false when the block was told to stop
template <typename Element, RedOp kOp, int kAtOnce, typename Block>
RW_HOST_DEVICE bool transfer_lines(Block& block, const FlaggedShape& shape,
                                   const FlaggedLocation* locations, std::uint64_t scalar,
                                   std::uint32_t first, std::uint32_t stride, std::uint32_t lines) {
  constexpr int kWords = 2 * Block::kPieces;  // of this thread, of a line
  const std::uint32_t end = (shape.bytes + 7) / 8;
  const std::uint32_t own = 2 * block.first_piece();
  // This thread's word `k` of line `u`, or past the end for the flag and for words without data.
  const auto word_of = [&](int u, int k) {
    const std::uint32_t in_line = own + static_cast<std::uint32_t>(k);
    if (in_line >= kLineWords) return end;
    return (first + static_cast<std::uint32_t>(u) * stride) * kLineWords + in_line;
  };
  Combined<Element, kOp, kAtOnce * kWords> combined(shape, scalar);
  std::uint64_t words[kAtOnce * kWords] = {};
  const FlaggedLocation* next = locations;
  RW_ROLLED
  for (std::uint32_t s = 0; s < shape.num_sources; ++s) {
    const FlaggedLocation location = *next++;
    if (location.flag == 0) {
      RW_UNROLL
      for (int i = 0; i < kAtOnce * kWords; ++i) {
        const std::uint32_t w = word_of(i / kWords, i % kWords);
        if (w < end) words[i] = load_word(block, location.data, w, shape.bytes);
      }
    } else if (!block.template load_pieces<kAtOnce>(location.data, first, stride, lines,
                                                    location.flag, words)) {
      return false;
    }
    combined.take(s, words);
  }
  combined.finish(words);
  const FlaggedLocation* last = locations + shape.num_sources + shape.num_destinations;
  RW_ROLLED
  while (next < last) {
    const FlaggedLocation location = *next++;
    if (location.flag != 0) {
      block.template store_pieces<kAtOnce>(location.data, first, stride, lines, location.flag,
                                           words);
    } else if (location.data != nullptr) {
      RW_UNROLL
      for (int i = 0; i < kAtOnce * kWords; ++i) {
        const std::uint32_t w = word_of(i / kWords, i % kWords);
        if (w < end) store_word(block, location.data, w, shape.bytes, words[i]);
      }
    }
  }
  return true;
}

/// @return false when the block was told to stop
template <typename Element, RedOp kOp, typename Block>
RW_HOST_DEVICE bool transfer_ll128(Block& block, const FlaggedShape& shape,
                                   const FlaggedLocation* locations, std::uint64_t scalar) {
  constexpr int kAtOnce = sizeof(typename Element::Stored) == 1 && !kOnlyCopied<Element> ? 2 : 4;
  constexpr std::uint32_t kDataBytes = 8 * kLineWords;
  const std::uint32_t lines = (shape.bytes + kDataBytes - 1) / kDataBytes;
  // What votes together goes together: a group of threads begins with the line of its first one.
  const std::uint32_t stride = block.size() * Block::kPieces / 8;
  std::uint32_t first = block.thread() * Block::kPieces / 8;
  if (lines <= stride) {
    return block.group_first_line() >= lines ||
           transfer_lines<Element, kOp, 1>(block, shape, locations, scalar, first, stride, lines);
  }
  RW_ROLLED
  for (std::uint32_t base = 0; base < lines; base += kAtOnce * stride, first += kAtOnce * stride) {
    if (base + block.group_first_line() >= lines) break;
    if (!transfer_lines<Element, kOp, kAtOnce>(block, shape, locations, scalar, first, stride,
                                               lines)) {
      return false;
    }
  }
  return true;
}

}  // namespace ropewalk::executor
