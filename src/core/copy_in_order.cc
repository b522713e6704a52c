#include "core/copy_in_order.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace ropewalk {
namespace {

constexpr std::size_t kLine = kOrderedLine;
constexpr std::size_t kData = kOrderedData;

// Later stores become visible after earlier ones: no instruction on x86-64, a barrier elsewhere.
void then() { std::atomic_thread_fence(std::memory_order_release); }

void copy_lines(std::byte* to, const std::byte* from, std::size_t lines) noexcept {
  for (; lines > 0; --lines, to += kLine, from += kLine) {
    std::memcpy(to, from, kData);
    then();
    std::memcpy(to + kData, from + kData, kLine - kData);
    then();
  }
}

#ifdef __x86_64__
__attribute__((target("avx2"))) void copy_lines_by_32(std::byte* to, const std::byte* from,
                                                      std::size_t lines) noexcept {
  for (; lines > 0; --lines, to += kLine, from += kLine) {
    for (std::size_t at = 0; at < 96; at += 32) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at),
                          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at)));
    }
    std::memcpy(to + 96, from + 96, kData - 96);
    then();
    std::memcpy(to + kData, from + kData, kLine - kData);
    then();
  }
}

const bool kHasAvx2 = __builtin_cpu_supports("avx2") != 0;
#endif

}  // namespace

void copy_in_order(void* destination, const void* source, std::size_t bytes) noexcept {
  auto* to = static_cast<std::byte*>(destination);
  const auto* from = static_cast<const std::byte*>(source);
  const auto copy = [&](const std::array<std::size_t, 2>& pieces) {
    for (const std::size_t count : pieces) {
      if (count == 0) continue;
      std::memcpy(to, from, count);
      to += count;
      from += count;
      then();
    }
  };
  const OrderedPieces pieces = ordered_pieces(reinterpret_cast<std::uintptr_t>(to) % kLine, bytes);
  copy(pieces.head);
#ifdef __x86_64__
  if (kHasAvx2) {
    copy_lines_by_32(to, from, pieces.lines);
  } else {
    copy_lines(to, from, pieces.lines);
  }
#else
  copy_lines(to, from, pieces.lines);
#endif
  to += pieces.lines * kLine;
  from += pieces.lines * kLine;
  copy(pieces.tail);
}

}  // namespace ropewalk
