// How a block copies and combines plain memory: all its threads share out the elements.
//
// Data is moved in packs of 16 bytes if every address allows it, several packs per thread at once,
// so that enough loads are in flight to fill a link.
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/block/arithmetic.h"

namespace ropewalk::executor {

/// The operands and the operation of a transfer, in a block's form.
struct BlockTransfer {
  const Source* sources = nullptr;
  const Destination* destinations = nullptr;
  Transfer what;
  std::uint64_t scalar = 0;
};

template <typename Element, RedOp kOp, typename Block>
RW_HOST_DEVICE void combine_elements(Block& block, const BlockTransfer& transfer, std::size_t begin,
                                     std::size_t end) {
  using Stored = typename Element::Stored;
  const Arithmetic<Element, kOp> arithmetic(transfer.what.scaled_source, transfer.what.divisor,
                                            transfer.scalar);
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
  constexpr std::size_t kAtOnce = sizeof(typename Element::Stored) >= 4   ? 4
                                  : sizeof(typename Element::Stored) == 2 ? 3
                                                                          : 2;
  const Arithmetic<Element, kOp> arithmetic(transfer.what.scaled_source, transfer.what.divisor,
                                            transfer.scalar);
  const std::size_t stride = block.size();
  for (std::size_t first = block.thread(); first < packs; first += kAtOnce * stride) {
    typename Element::Compute sums[kAtOnce][kPerPack] = {};
    const auto load = [&](std::uint32_t s, PackOf<Element>(&in)[kAtOnce]) {
      const auto* from = reinterpret_cast<const Pack*>(transfer.sources[s].data) + first;
      RW_UNROLL
      for (std::size_t u = 0; u < kAtOnce; ++u) {
        if (first + u * stride < packs) in[u].pack = block.load(from + u * stride);
      }
    };
    const auto take = [&](std::uint32_t s, const PackOf<Element>(&in)[kAtOnce]) {
      RW_UNROLL
      for (std::size_t u = 0; u < kAtOnce; ++u) {
        RW_UNROLL
        for (std::size_t e = 0; e < kPerPack; ++e) {
          arithmetic.take(sums[u][e], s, in[u].elements[e]);
        }
      }
    };
    // Two sources at a time: the loads of one do not wait for those of the other.
    RW_ROLLED
    for (std::uint32_t s = 0; s < transfer.what.num_sources; s += 2) {
      PackOf<Element> one[kAtOnce] = {};
      PackOf<Element> other[kAtOnce] = {};
      const bool both = s + 1 < transfer.what.num_sources;
      load(s, one);
      if (both) load(s + 1, other);
      take(s, one);
      if (both) take(s + 1, other);
    }
    PackOf<Element> out[kAtOnce] = {};
    const auto finish_all = [&](const auto& finish) {
      RW_UNROLL
      for (std::size_t u = 0; u < kAtOnce; ++u) {
        RW_UNROLL
        for (std::size_t e = 0; e < kPerPack; ++e) out[u].elements[e] = finish(sums[u][e]);
      }
    };
    // Asked once, and not for each element: a branch for each is a third of all instructions.
    if (arithmetic.divides()) {
      finish_all([&](typename Element::Compute sum) { return arithmetic.finish(sum); });
    } else {
      finish_all([](typename Element::Compute sum) { return Element::encode(sum); });
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

/// Copies `bytes` of the one source, unless it is in place already.
template <typename Block>
RW_HOST_DEVICE void copy_bytes(Block& block, const BlockTransfer& transfer, std::size_t bytes) {
  constexpr std::size_t kAtOnce = 8;
  const std::byte* source = transfer.sources[0].data;
  const std::size_t stride = block.size();
  std::uintptr_t addresses = reinterpret_cast<std::uintptr_t>(source);
  std::uint32_t kept = 0;
  for (std::uint32_t d = 0; d < transfer.what.num_destinations; ++d) {
    const std::byte* to = transfer.destinations[d].data;
    if (to == nullptr || to == source) continue;
    addresses |= reinterpret_cast<std::uintptr_t>(to);
    ++kept;
  }
  if (kept == 0) return;
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
  // The rest after the packs: by the widest word to which all addresses are aligned.
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
  if (is_copy(what.num_sources, what.scaled_source, what.divisor)) {
    copy_bytes(block, transfer, what.count * sizeof(typename Element::Stored));
    return;
  }
  if constexpr (!kOnlyCopied<Element>) combine_plain<Element, kOp>(block, transfer);
}

}  // namespace ropewalk::executor
