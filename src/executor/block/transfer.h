// How a block copies and combines: all its threads share out the elements.
//
// Plain memory is moved in packs of 16 bytes where every address allows it, several packs per
// thread at once, so that enough loads are on their way to fill a link. Memory of ll links is moved
// in words of 8 bytes; a source is waited for word by word.
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/block/elements.h"
#include "executor/call.h"

namespace ropewalk::executor {

struct alignas(16) Pack {
  std::uint32_t words[4];
};

template <typename Element>
union PackOf {
  Pack pack;
  typename Element::Stored elements[sizeof(Pack) / sizeof(typename Element::Stored)];
};
template <typename Element>
union WordOf {
  std::uint64_t word;
  typename Element::Stored elements[sizeof(std::uint64_t) / sizeof(typename Element::Stored)];
};

/// The operands of a transfer and what is to be done with them, as a block sees them.
struct BlockTransfer {
  const Source* sources = nullptr;
  const Destination* destinations = nullptr;
  Transfer what;
  std::uint64_t scalar = 0;
};

template <typename Element>
RW_HOST_DEVICE inline typename Element::Compute decode_scalar(std::uint64_t bits) {
  WordOf<Element> word;
  word.word = bits;
  return Element::decode(word.elements[0]);
}

/// What every element of a step goes through.
template <typename Element, RedOp kOp>
class Arithmetic {
 public:
  using Stored = typename Element::Stored;
  using Compute = typename Element::Compute;

  RW_HOST_DEVICE explicit Arithmetic(const BlockTransfer& transfer)
      : scaled_source_(transfer.what.scaled_source),
        divisor_(transfer.what.divisor),
        scale_(decode_scalar<Element>(transfer.scalar)) {}

  /// Takes element `value` of source `s` into `sum`.
  RW_HOST_DEVICE void take(Compute& sum, std::uint32_t s, Stored value) const {
    Compute x = Element::decode(value);
    if (static_cast<std::int32_t>(s) == scaled_source_) x = apply<RedOp::kProd>(x, scale_);
    sum = s == 0 ? x : apply<kOp>(sum, x);
  }
  RW_HOST_DEVICE Stored finish(Compute sum) const {
    return Element::encode(divisor_ > 1 ? divide(sum, divisor_) : sum);
  }

 private:
  std::int32_t scaled_source_;
  std::uint32_t divisor_;
  Compute scale_;
};

RW_HOST_DEVICE inline bool is_copy(const Transfer& what) {
  return what.num_sources == 1 && what.scaled_source < 0 && what.divisor <= 1;
}

// ---- plain memory -----------------------------------------------------------------------

template <typename Element, RedOp kOp, typename Block>
RW_HOST_DEVICE void combine_elements(Block& block, const BlockTransfer& transfer, std::size_t begin,
                                     std::size_t end) {
  using Stored = typename Element::Stored;
  const Arithmetic<Element, kOp> arithmetic(transfer);
  for (std::size_t i = begin + block.thread(); i < end; i += block.size()) {
    typename Element::Compute sum{};
    for (std::uint32_t s = 0; s < transfer.what.num_sources; ++s) {
      const auto* from = reinterpret_cast<const Stored*>(transfer.sources[s].data);
      arithmetic.take(sum, s, block.load(from + i));
    }
    const Stored value = arithmetic.finish(sum);
    for (std::uint32_t d = 0; d < transfer.what.num_destinations; ++d) {
      auto* to = reinterpret_cast<Stored*>(transfer.destinations[d].data);
      if (to != nullptr) to[i] = value;
    }
  }
}

template <typename Element, RedOp kOp, typename Block>
RW_HOST_DEVICE void combine_packs(Block& block, const BlockTransfer& transfer, std::size_t packs) {
  constexpr std::size_t kPerPack = sizeof(Pack) / sizeof(typename Element::Stored);
  // Sums of small types are wider than their packs, and registers are few.
  constexpr std::size_t kAtOnce = sizeof(typename Element::Stored) >= 4   ? 8
                                  : sizeof(typename Element::Stored) == 2 ? 4
                                                                          : 2;
  const Arithmetic<Element, kOp> arithmetic(transfer);
  const std::size_t stride = block.size();
  for (std::size_t first = block.thread(); first < packs; first += kAtOnce * stride) {
    typename Element::Compute sums[kAtOnce][kPerPack] = {};
    for (std::uint32_t s = 0; s < transfer.what.num_sources; ++s) {
      const auto* from = reinterpret_cast<const Pack*>(transfer.sources[s].data) + first;
      PackOf<Element> in[kAtOnce] = {};
      RW_UNROLL
      for (std::size_t u = 0; u < kAtOnce; ++u) {
        if (first + u * stride < packs) in[u].pack = block.load(from + u * stride);
      }
      RW_UNROLL
      for (std::size_t u = 0; u < kAtOnce; ++u) {
        RW_UNROLL
        for (std::size_t e = 0; e < kPerPack; ++e) {
          arithmetic.take(sums[u][e], s, in[u].elements[e]);
        }
      }
    }
    PackOf<Element> out[kAtOnce] = {};
    RW_UNROLL
    for (std::size_t u = 0; u < kAtOnce; ++u) {
      RW_UNROLL
      for (std::size_t e = 0; e < kPerPack; ++e) {
        out[u].elements[e] = arithmetic.finish(sums[u][e]);
      }
    }
    for (std::uint32_t d = 0; d < transfer.what.num_destinations; ++d) {
      auto* to = reinterpret_cast<Pack*>(transfer.destinations[d].data);
      if (to == nullptr) continue;
      RW_UNROLL
      for (std::size_t u = 0; u < kAtOnce; ++u) {
        if (first + u * stride < packs) block.store(to + first + u * stride, out[u].pack);
      }
    }
  }
}

/// Copies `bytes` of the one source, where it is not in place already.
template <typename Block>
RW_HOST_DEVICE void copy_bytes(Block& block, const BlockTransfer& transfer, std::size_t bytes) {
  constexpr std::size_t kAtOnce = 8;
  const std::byte* source = transfer.sources[0].data;
  const std::size_t stride = block.size();
  std::uintptr_t addresses = reinterpret_cast<std::uintptr_t>(source);
  std::uint32_t places = 0;
  for (std::uint32_t d = 0; d < transfer.what.num_destinations; ++d) {
    const std::byte* to = transfer.destinations[d].data;
    if (to == nullptr || to == source) continue;
    addresses |= reinterpret_cast<std::uintptr_t>(to);
    ++places;
  }
  if (places == 0) return;
  const std::size_t packs = addresses % sizeof(Pack) == 0 ? bytes / sizeof(Pack) : 0;
  for (std::size_t first = block.thread(); first < packs; first += kAtOnce * stride) {
    Pack in[kAtOnce] = {};
    const auto* from = reinterpret_cast<const Pack*>(source) + first;
    RW_UNROLL
    for (std::size_t u = 0; u < kAtOnce; ++u) {
      if (first + u * stride < packs) in[u] = block.load(from + u * stride);
    }
    for (std::uint32_t d = 0; d < transfer.what.num_destinations; ++d) {
      std::byte* to = transfer.destinations[d].data;
      if (to == nullptr || to == source) continue;
      RW_UNROLL
      for (std::size_t u = 0; u < kAtOnce; ++u) {
        if (first + u * stride < packs) {
          block.store(reinterpret_cast<Pack*>(to) + first + u * stride, in[u]);
        }
      }
    }
  }
  // What no pack holds: by the widest word that all addresses share.
  const auto rest = [&](auto word) {
    using Word = decltype(word);
    const std::size_t begin = packs * sizeof(Pack) / sizeof(Word);
    for (std::size_t i = begin + block.thread(); i < bytes / sizeof(Word); i += stride) {
      const Word value = block.load(reinterpret_cast<const Word*>(source) + i);
      for (std::uint32_t d = 0; d < transfer.what.num_destinations; ++d) {
        std::byte* to = transfer.destinations[d].data;
        if (to != nullptr && to != source) reinterpret_cast<Word*>(to)[i] = value;
      }
    }
  };
  const std::uintptr_t shape = addresses | bytes;
  if (shape % 8 == 0) {
    rest(std::uint64_t{});
  } else if (shape % 4 == 0) {
    rest(std::uint32_t{});
  } else if (shape % 2 == 0) {
    rest(std::uint16_t{});
  } else {
    rest(std::uint8_t{});
  }
}

template <typename Element, RedOp kOp, typename Block>
RW_HOST_DEVICE void combine_plain(Block& block, const BlockTransfer& transfer) {
  const Transfer& what = transfer.what;
  std::uintptr_t addresses = 0;
  for (std::uint32_t s = 0; s < what.num_sources; ++s) {
    addresses |= reinterpret_cast<std::uintptr_t>(transfer.sources[s].data);
  }
  for (std::uint32_t d = 0; d < what.num_destinations; ++d) {
    addresses |= reinterpret_cast<std::uintptr_t>(transfer.destinations[d].data);
  }
  constexpr std::size_t kPerPack = sizeof(Pack) / sizeof(typename Element::Stored);
  const std::size_t packs = addresses % sizeof(Pack) == 0 ? what.count / kPerPack : 0;
  if (packs > 0) combine_packs<Element, kOp>(block, transfer, packs);
  if (packs * kPerPack < what.count) {
    combine_elements<Element, kOp>(block, transfer, packs * kPerPack, what.count);
  }
}

template <typename Element, RedOp kOp, typename Block>
RW_HOST_DEVICE void transfer_plain(Block& block, const BlockTransfer& transfer) {
  const Transfer& what = transfer.what;
  if (is_copy(what)) {
    copy_bytes(block, transfer, what.count * sizeof(typename Element::Stored));
    return;
  }
  if constexpr (!kOnlyCopied<Element>) combine_plain<Element, kOp>(block, transfer);
}

// ---- ll lines ---------------------------------------------------------------------------

/// Word `w` of a plain buffer of `bytes`, of which the last may be a part.
template <typename Block>
RW_HOST_DEVICE std::uint64_t load_word(Block& block, const std::byte* data, std::size_t w,
                                       std::size_t bytes) {
  const std::byte* from = data + 8 * w;
  const std::size_t left = bytes - 8 * w;
  if (reinterpret_cast<std::uintptr_t>(from) % 8 == 0 && left >= 8) {
    return block.load(reinterpret_cast<const std::uint64_t*>(from));
  }
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < 8 && i < left; ++i) {
    const auto byte = block.load(reinterpret_cast<const std::uint8_t*>(from) + i);
    word |= std::uint64_t{byte} << (8 * i);
  }
  return word;
}

RW_HOST_DEVICE inline void store_word(std::byte* data, std::size_t w, std::size_t bytes,
                                      std::uint64_t word) {
  std::byte* to = data + 8 * w;
  const std::size_t left = bytes - 8 * w;
  if (reinterpret_cast<std::uintptr_t>(to) % 8 == 0 && left >= 8) {
    *reinterpret_cast<std::uint64_t*>(to) = word;
    return;
  }
  for (std::size_t i = 0; i < 8 && i < left; ++i) {
    to[i] = static_cast<std::byte>(word >> (8 * i));
  }
}

/// `kAtOnce` words of each thread, `stride` apart. @return false when the block was told to stop
template <typename Element, RedOp kOp, int kAtOnce, typename Block>
RW_HOST_DEVICE bool transfer_words(Block& block, const BlockTransfer& transfer, std::size_t first,
                                   std::size_t stride, std::size_t bytes) {
  constexpr std::size_t kPerWord = sizeof(std::uint64_t) / sizeof(typename Element::Stored);
  const Transfer& what = transfer.what;
  const bool copies = kOnlyCopied<Element> || is_copy(what);
  const Arithmetic<Element, kOp> arithmetic(transfer);
  WordOf<Element> values[kAtOnce] = {};
  typename Element::Compute sums[kAtOnce][kPerWord] = {};
  for (std::uint32_t s = 0; s < what.num_sources; ++s) {
    const Source source = transfer.sources[s];
    if (source.flag == 0) {
      RW_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        values[u].word =
            load_word(block, source.data, first + static_cast<std::size_t>(u) * stride, bytes);
      }
    } else {
      std::uint64_t words[kAtOnce];
      if (!block.template load_lines<kAtOnce>(source.data + 16 * first, 16 * stride, source.flag,
                                              words)) {
        return false;
      }
      RW_UNROLL
      for (int u = 0; u < kAtOnce; ++u) values[u].word = words[u];
    }
    if constexpr (!kOnlyCopied<Element>) {
      if (!copies) {
        RW_UNROLL
        for (int u = 0; u < kAtOnce; ++u) {
          RW_UNROLL
          for (std::size_t e = 0; e < kPerWord; ++e) {
            arithmetic.take(sums[u][e], s, values[u].elements[e]);
          }
        }
      }
    }
  }
  if constexpr (!kOnlyCopied<Element>) {
    if (!copies) {
      RW_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        RW_UNROLL
        for (std::size_t e = 0; e < kPerWord; ++e) {
          values[u].elements[e] = arithmetic.finish(sums[u][e]);
        }
      }
    }
  }
  for (std::uint32_t d = 0; d < what.num_destinations; ++d) {
    const Destination destination = transfer.destinations[d];
    if (destination.data == nullptr) continue;
    RW_UNROLL
    for (int u = 0; u < kAtOnce; ++u) {
      const std::size_t w = first + static_cast<std::size_t>(u) * stride;
      if (destination.flag == 0) {
        store_word(destination.data, w, bytes, values[u].word);
      } else {
        block.store_line(destination.data + 16 * w, destination.flag, values[u].word);
      }
    }
  }
  return true;
}

/// One line of each of `kAtOnce` (lines `stride` apart; those beyond `lines` are nothing). The
/// threads of a line go together. @return false when the block was told to stop
template <typename Element, RedOp kOp, int kAtOnce, typename Block>
RW_HOST_DEVICE bool transfer_lines(Block& block, const BlockTransfer& transfer, std::size_t first,
                                   std::size_t stride, std::size_t lines, std::size_t bytes) {
  constexpr int kWords = 2 * Block::kPieces;  // of this thread, of a line
  constexpr std::size_t kPerWord = sizeof(std::uint64_t) / sizeof(typename Element::Stored);
  const Transfer& what = transfer.what;
  const bool copies = kOnlyCopied<Element> || is_copy(what);
  const Arithmetic<Element, kOp> arithmetic(transfer);
  const std::size_t words = (bytes + 7) / 8;
  const std::size_t own = 2 * block.first_piece();
  // This thread's word `k` of line `u`, or past the end for the flag's place and what is no data.
  const auto word_of = [&](int u, int k) {
    const std::size_t in_line = own + static_cast<std::size_t>(k);
    if (in_line >= kLineWords) return words;
    return (first + static_cast<std::size_t>(u) * stride) * kLineWords + in_line;
  };
  WordOf<Element> values[kAtOnce][kWords] = {};
  typename Element::Compute sums[kAtOnce][kWords][kPerWord] = {};
  for (std::uint32_t s = 0; s < what.num_sources; ++s) {
    const Source source = transfer.sources[s];
    if (source.flag == 0) {
      RW_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        RW_UNROLL
        for (int k = 0; k < kWords; ++k) {
          const std::size_t w = word_of(u, k);
          if (w < words) values[u][k].word = load_word(block, source.data, w, bytes);
        }
      }
    } else {
      std::uint64_t in[kAtOnce][kWords];
      if (!block.template load_pieces<kAtOnce>(source.data, first, stride, lines, source.flag,
                                               in)) {
        return false;
      }
      RW_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        RW_UNROLL
        for (int k = 0; k < kWords; ++k) values[u][k].word = in[u][k];
      }
    }
    if constexpr (!kOnlyCopied<Element>) {
      if (!copies) {
        RW_UNROLL
        for (int u = 0; u < kAtOnce; ++u) {
          RW_UNROLL
          for (int k = 0; k < kWords; ++k) {
            RW_UNROLL
            for (std::size_t e = 0; e < kPerWord; ++e) {
              arithmetic.take(sums[u][k][e], s, values[u][k].elements[e]);
            }
          }
        }
      }
    }
  }
  if constexpr (!kOnlyCopied<Element>) {
    if (!copies) {
      RW_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        RW_UNROLL
        for (int k = 0; k < kWords; ++k) {
          RW_UNROLL
          for (std::size_t e = 0; e < kPerWord; ++e) {
            values[u][k].elements[e] = arithmetic.finish(sums[u][k][e]);
          }
        }
      }
    }
  }
  for (std::uint32_t d = 0; d < what.num_destinations; ++d) {
    const Destination destination = transfer.destinations[d];
    if (destination.data == nullptr) continue;
    if (destination.flag != 0) {
      std::uint64_t out[kAtOnce][kWords];
      RW_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        RW_UNROLL
        for (int k = 0; k < kWords; ++k) out[u][k] = values[u][k].word;
      }
      block.template store_pieces<kAtOnce>(destination.data, first, stride, lines, destination.flag,
                                           out);
      continue;
    }
    RW_UNROLL
    for (int u = 0; u < kAtOnce; ++u) {
      RW_UNROLL
      for (int k = 0; k < kWords; ++k) {
        const std::size_t w = word_of(u, k);
        if (w < words) store_word(destination.data, w, bytes, values[u][k].word);
      }
    }
  }
  return true;
}

/// @return false when the block was told to stop
template <typename Element, RedOp kOp, typename Block>
RW_HOST_DEVICE bool transfer_ll128(Block& block, const BlockTransfer& transfer) {
  constexpr int kAtOnce = sizeof(typename Element::Stored) == 1 && !kOnlyCopied<Element> ? 2 : 4;
  const std::size_t bytes = transfer.what.count * sizeof(typename Element::Stored);
  const std::size_t lines = (bytes + 8 * kLineWords - 1) / (8 * kLineWords);
  // What votes together goes together: a group of threads begins with the line of its first one.
  const std::size_t stride = block.size() * Block::kPieces / 8;
  for (std::size_t base = 0; base < lines; base += kAtOnce * stride) {
    const std::size_t first = base + block.thread() * Block::kPieces / 8;
    if (base + block.group_first_line() >= lines) break;
    if (!transfer_lines<Element, kOp, kAtOnce>(block, transfer, first, stride, lines, bytes)) {
      return false;
    }
  }
  return true;
}

/// @return false when the block was told to stop
template <typename Element, RedOp kOp, typename Block>
RW_HOST_DEVICE bool transfer_ll(Block& block, const BlockTransfer& transfer) {
  constexpr int kAtOnce = 4;
  const std::size_t bytes = transfer.what.count * sizeof(typename Element::Stored);
  const std::size_t words = (bytes + 7) / 8;
  const std::size_t stride = block.size();
  std::size_t w = block.thread();
  for (; w + std::size_t{kAtOnce - 1} * stride < words; w += kAtOnce * stride) {
    if (!transfer_words<Element, kOp, kAtOnce>(block, transfer, w, stride, bytes)) return false;
  }
  for (; w < words; w += stride) {
    if (!transfer_words<Element, kOp, 1>(block, transfer, w, stride, bytes)) return false;
  }
  return true;
}

}  // namespace ropewalk::executor
