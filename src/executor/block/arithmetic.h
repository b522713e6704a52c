// The packs that a block's threads move, and the arithmetic on every element of a step.
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/block/elements.h"
#include "executor/call.h"

namespace ropewalk::executor {

struct alignas(16) Pack {
  std::uint32_t words[4];
};

/// A line of ll: a word, with the flag beside each half.
RW_HOST_DEVICE inline Pack line_of(std::uint64_t word, std::uint32_t flag) {
  return {{static_cast<std::uint32_t>(word), flag, static_cast<std::uint32_t>(word >> 32U), flag}};
}
RW_HOST_DEVICE inline std::uint64_t word_of(const Pack& line) {
  return line.words[0] | std::uint64_t{line.words[2]} << 32U;
}
RW_HOST_DEVICE inline bool has_flag(const Pack& line, std::uint32_t flag) {
  return line.words[1] == flag && line.words[3] == flag;
}

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

  /// `scalar`: what source `scaled_source` (-1: none) is multiplied with, in the low bytes.
  RW_HOST_DEVICE Arithmetic(std::int32_t scaled_source, std::uint32_t divisor, std::uint64_t scalar)
      : scaled_source_(scaled_source), divisor_(divisor), scale_(decode_scalar<Element>(scalar)) {}

  /// Takes element `value` of source `s` into `sum`.
  RW_HOST_DEVICE void take(Compute& sum, std::uint32_t s, Stored value) const {
    Compute x = Element::decode(value);
    if (static_cast<std::int32_t>(s) == scaled_source_) x = apply<RedOp::kProd>(x, scale_);
    sum = s == 0 ? x : apply<kOp>(sum, x);
  }
  RW_HOST_DEVICE Stored finish(Compute sum) const {
    return Element::encode(divides() ? divide(sum, divisor_) : sum);
  }
  /// Whether finish() divides, the same for all elements.
  [[nodiscard]] RW_HOST_DEVICE bool divides() const { return divisor_ > 1; }

 private:
  std::int32_t scaled_source_;
  std::uint32_t divisor_;
  Compute scale_;
};

RW_HOST_DEVICE inline bool is_copy(std::uint32_t num_sources, std::int32_t scaled_source,
                                   std::uint32_t divisor) {
  return num_sources == 1 && scaled_source < 0 && divisor <= 1;
}

}  // namespace ropewalk::executor
