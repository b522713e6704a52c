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

/// Sources that a thread waits for together: to load one line after the other, each when the one
/// before it has come, takes 0.2 us for each of them.
inline constexpr std::uint32_t kSourcesAtOnce = 4;

/// Where a step's result goes: `to_link` takes the location of each link, `to_output` the address
/// in this rank's output, if there is one.
template <typename ToLink, typename ToOutput>
RW_HOST_DEVICE void for_destinations(const FlaggedShape& shape, const FlaggedLocation* locations,
                                     const ToLink& to_link, const ToOutput& to_output) {
  const FlaggedLocation* next = locations + shape.num_sources;
  const FlaggedLocation* end = next + shape.num_destinations;
  RW_ROLLED
  while (next < end) {
    const FlaggedLocation location = *next++;
    if (location.flag != 0) {
      to_link(location);
    } else if (location.data != nullptr) {
      to_output(location.data);
    }
  }
}

// ---- ll ---------------------------------------------------------------------------------

/// Stores word `w` of a step's result wherever it goes.
template <typename Block>
RW_HOST_DEVICE void store_result(Block& block, const FlaggedShape& shape,
                                 const FlaggedLocation* locations, std::uint32_t w,
                                 std::uint64_t word) {
  for_destinations(
      shape, locations,
      [&](const FlaggedLocation& link) {
        block.store_line(link.data + 16 * std::size_t{w}, link.flag, word);
      },
      [&](std::byte* output) { store_word(block, output, w, shape.bytes, word); });
}

/// A step of many sources, of which a thread waits for kSourcesAtOnce together.
/// @return false when the block was told to stop
template <typename Element, RedOp kOp, typename Block>
RW_HOST_DEVICE bool transfer_ll_many(Block& block, const FlaggedShape& shape,
                                     const FlaggedLocation* locations, std::uint64_t scalar) {
  const std::uint32_t words = (shape.bytes + 7) / 8;
  RW_ROLLED
  for (std::uint32_t w = block.thread(); w < words; w += block.size()) {
    Combined<Element, kOp, 1> combined(shape, scalar);
    std::uint64_t word[1] = {};
    RW_ROLLED
    for (std::uint32_t first = 0; first < shape.num_sources; first += kSourcesAtOnce) {
      const std::byte* at[kSourcesAtOnce] = {};
      std::uint32_t flags[kSourcesAtOnce] = {};
      Pack lines[kSourcesAtOnce] = {};
      RW_UNROLL
      for (std::uint32_t u = 0; u < kSourcesAtOnce; ++u) {
        if (first + u >= shape.num_sources) continue;
        const FlaggedLocation location = locations[first + u];
        flags[u] = location.flag;
        at[u] = location.data + 16 * std::size_t{w};
        if (flags[u] == 0) lines[u] = line_of(load_word(block, location.data, w, shape.bytes), 0);
      }
      const bool there = block.wait([&] {
        bool all = true;
        RW_UNROLL
        for (std::uint32_t u = 0; u < kSourcesAtOnce; ++u) {
          if (flags[u] != 0) lines[u] = block.look_at_line(at[u]);
        }
        RW_UNROLL
        for (std::uint32_t u = 0; u < kSourcesAtOnce; ++u) {
          all = all && has_flag(lines[u], flags[u]);
        }
        return all;
      });
      if (!there) return false;
      RW_UNROLL
      for (std::uint32_t u = 0; u < kSourcesAtOnce; ++u) {
        if (first + u >= shape.num_sources) continue;
        word[0] = word_of(lines[u]);
        combined.take(first + u, word);
      }
    }
    combined.finish(word);
    store_result(block, shape, locations, w, word[0]);
  }
  return true;
}

/// `kKind`: of the kernel.
/// @return false when the block was told to stop
template <typename Element, RedOp kOp, KernelKind kKind, typename Block>
RW_HOST_DEVICE bool transfer_ll(Block& block, const FlaggedShape& shape,
                                const FlaggedLocation* locations, std::uint64_t scalar) {
  if constexpr (kKind == KernelKind::kManySources) {
    if (shape.num_sources > kFewSources) {
      return transfer_ll_many<Element, kOp>(block, shape, locations, scalar);
    }
  }
  const std::uint32_t words = (shape.bytes + 7) / 8;
  RW_ROLLED
  for (std::uint32_t w = block.thread(); w < words; w += block.size()) {
    Combined<Element, kOp, 1> combined(shape, scalar);
    std::uint64_t word[1] = {};
    RW_ROLLED
    for (std::uint32_t s = 0; s < shape.num_sources; ++s) {
      const FlaggedLocation location = locations[s];
      if (location.flag == 0) {
        word[0] = load_word(block, location.data, w, shape.bytes);
      } else if (!block.load_line(location.data + 16 * std::size_t{w}, location.flag, word[0])) {
        return false;
      }
      combined.take(s, word);
    }
    combined.finish(word);
    store_result(block, shape, locations, w, word[0]);
  }
  return true;
}

// ---- ll128 ------------------------------------------------------------------------------

/// A thread's words of each of `kAtOnce` lines, the first of which is `first`; the others are
/// `stride` apart.
template <typename Block, int kAtOnce>
class ThreadWords {
 public:
  static constexpr int kWords = kAtOnce * 2 * Block::kPieces;

  RW_HOST_DEVICE ThreadWords(const Block& block, const FlaggedShape& shape, std::uint32_t first,
                             std::uint32_t stride)
      : bytes_(shape.bytes),
        end_((shape.bytes + 7) / 8),
        own_(2 * block.first_piece()),
        first_(first),
        stride_(stride) {}

  /// Loads them from this rank's memory.
  RW_HOST_DEVICE void load(Block& block, const std::byte* data,
                           std::uint64_t (&words)[kWords]) const {
    RW_UNROLL
    for (int i = 0; i < kWords; ++i) {
      const std::uint32_t w = index(i);
      if (w < end_) words[i] = load_word(block, data, w, bytes_);
    }
  }
  /// Stores them wherever a step's result goes. The threads of a line go together.
  RW_HOST_DEVICE void store(Block& block, const FlaggedShape& shape,
                            const FlaggedLocation* locations, std::uint32_t lines,
                            const std::uint64_t (&words)[kWords]) const {
    for_destinations(
        shape, locations,
        [&](const FlaggedLocation& link) {
          block.template store_pieces<kAtOnce>(link.data, first_, stride_, lines, link.flag, words);
        },
        [&](std::byte* output) {
          RW_UNROLL
          for (int i = 0; i < kWords; ++i) {
            const std::uint32_t w = index(i);
            if (w < end_) store_word(block, output, w, bytes_, words[i]);
          }
        });
  }

 private:
  // Of word `i`; past the end for the flag and for words without data.
  RW_HOST_DEVICE std::uint32_t index(int i) const {
    constexpr int kOfLine = 2 * Block::kPieces;
    const std::uint32_t in_line = own_ + static_cast<std::uint32_t>(i % kOfLine);
    if (in_line >= kLineWords) return end_;
    return (first_ + static_cast<std::uint32_t>(i / kOfLine) * stride_) * kLineWords + in_line;
  }

  std::uint32_t bytes_;
  std::uint32_t end_;
  std::uint32_t own_;
  std::uint32_t first_;
  std::uint32_t stride_;
};

/// One line of each of `kAtOnce` (lines `stride` apart; those beyond `lines` are nothing). The
/// threads of a line go together.
/// @return false when the block was told to stop
template <typename Element, RedOp kOp, int kAtOnce, typename Block>
RW_HOST_DEVICE bool transfer_lines(Block& block, const FlaggedShape& shape,
                                   const FlaggedLocation* locations, std::uint64_t scalar,
                                   std::uint32_t first, std::uint32_t stride, std::uint32_t lines) {
  const ThreadWords<Block, kAtOnce> own(block, shape, first, stride);
  constexpr int kWords = ThreadWords<Block, kAtOnce>::kWords;
  Combined<Element, kOp, kWords> combined(shape, scalar);
  std::uint64_t words[kWords] = {};
  RW_ROLLED
  for (std::uint32_t s = 0; s < shape.num_sources; ++s) {
    const FlaggedLocation location = locations[s];
    if (location.flag == 0) {
      own.load(block, location.data, words);
    } else if (!block.template load_pieces<kAtOnce>(location.data, first, stride, lines,
                                                    location.flag, words)) {
      return false;
    }
    combined.take(s, words);
  }
  combined.finish(words);
  own.store(block, shape, locations, lines, words);
  return true;
}

/// One line of a step of many sources, of which the threads of a line wait for kSourcesAtOnce
/// together; nothing where `line` is beyond `lines`. As transfer_ll_many().
/// @return false when the block was told to stop
template <typename Element, RedOp kOp, typename Block>
RW_HOST_DEVICE bool transfer_line_many(Block& block, const FlaggedShape& shape,
                                       const FlaggedLocation* locations, std::uint64_t scalar,
                                       std::uint32_t line, std::uint32_t lines) {
  const ThreadWords<Block, 1> own(block, shape, line, 0);
  constexpr int kWords = ThreadWords<Block, 1>::kWords;
  Combined<Element, kOp, kWords> combined(shape, scalar);
  std::uint64_t words[kWords] = {};
  RW_ROLLED
  for (std::uint32_t first = 0; first < shape.num_sources; first += kSourcesAtOnce) {
    const std::byte* at[kSourcesAtOnce] = {};
    std::uint32_t flags[kSourcesAtOnce] = {};
    typename Block::Piece pieces[kSourcesAtOnce];
    RW_UNROLL
    for (std::uint32_t u = 0; u < kSourcesAtOnce; ++u) {
      if (first + u >= shape.num_sources) continue;
      flags[u] = locations[first + u].flag;
      at[u] = locations[first + u].data;
      if (flags[u] != 0) continue;
      own.load(block, at[u], words);  // before the others come
      block.set_words(pieces[u], words);
    }
    const bool there = block.wait_together([&] {
      RW_UNROLL
      for (std::uint32_t u = 0; u < kSourcesAtOnce; ++u) {
        if (flags[u] != 0 && line < lines) pieces[u] = block.look_at_piece(at[u], line);
      }
      bool all = true;
      RW_UNROLL
      for (std::uint32_t u = 0; u < kSourcesAtOnce; ++u) {
        if (flags[u] != 0) all = all && block.has_flag(pieces[u], flags[u]);
      }
      return block.all_of_group(all || line >= lines);
    });
    if (!there) return false;
    RW_UNROLL
    for (std::uint32_t u = 0; u < kSourcesAtOnce; ++u) {
      if (first + u >= shape.num_sources) continue;
      block.words_of(pieces[u], words);
      combined.take(first + u, words);
    }
  }
  combined.finish(words);
  own.store(block, shape, locations, lines, words);
  return true;
}

/// As transfer_ll().
template <typename Element, RedOp kOp, KernelKind kKind, typename Block>
RW_HOST_DEVICE bool transfer_ll128(Block& block, const FlaggedShape& shape,
                                   const FlaggedLocation* locations, std::uint64_t scalar) {
  constexpr int kAtOnce = sizeof(typename Element::Stored) == 1 && !kOnlyCopied<Element> ? 2 : 4;
  constexpr std::uint32_t kDataBytes = 8 * kLineWords;
  const std::uint32_t lines = (shape.bytes + kDataBytes - 1) / kDataBytes;
  // What votes together goes together: a group of threads begins with the line of its first one.
  const std::uint32_t stride = block.size() * Block::kPieces / 8;
  std::uint32_t first = block.thread() * Block::kPieces / 8;
  if (lines <= stride) {
    if constexpr (kKind == KernelKind::kManySources) {
      if (shape.num_sources > kFewSources) {
        return block.group_first_line() >= lines ||
               transfer_line_many<Element, kOp>(block, shape, locations, scalar, first, lines);
      }
    }
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
