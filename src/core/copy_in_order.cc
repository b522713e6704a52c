#include "core/copy_in_order.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace ropewalk {
namespace {

constexpr std::size_t kLine = 128;
constexpr std::size_t kData = 120;

// What comes is stored after what was: no instruction on x86-64, a barrier elsewhere.
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

const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
#endif

}  // namespace

void copy_in_order(void* destination, const void* source, std::size_t bytes) noexcept {
  auto* to = static_cast<std::byte*>(destination);
  const auto* from = static_cast<const std::byte*>(source);
  const auto copy = [&](std::size_t count) {
    std::memcpy(to, from, count);
    to += count;
    from += count;
    bytes -= count;
    then();
  };
  // To the start of a line, where its last 8 bytes are apart, too.
  const std::size_t within = reinterpret_cast<std::uintptr_t>(to) % kLine;
  if (within != 0) {
    if (within < kData) copy(std::min(kData - within, bytes));
    copy(std::min(kLine - reinterpret_cast<std::uintptr_t>(to) % kLine, bytes));
  }
  const std::size_t lines = bytes / kLine;
#ifdef __x86_64__
  if (has_avx2) {
    copy_lines_by_32(to, from, lines);
  } else {
    copy_lines(to, from, lines);
  }
#else
  copy_lines(to, from, lines);
#endif
  to += lines * kLine;
  from += lines * kLine;
  bytes -= lines * kLine;
  if (bytes > kData) copy(kData);
  copy(bytes);
}

}  // namespace ropewalk
