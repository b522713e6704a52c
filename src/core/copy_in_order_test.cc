#include "core/copy_in_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "core/testing/sanitizers.h"

namespace ropewalk {
namespace {

TEST(CopyInOrder, CopiesEveryByteAndNoOther) {
  constexpr std::size_t kMost = 700;
  alignas(128) std::byte to[kMost + 256];
  std::vector<std::byte> from(kMost + 64);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (const std::size_t begin : {0U, 1U, 8U, 64U, 119U, 120U, 121U, 127U}) {
    for (std::size_t bytes = 0; bytes <= kMost; bytes += bytes < 300 ? 1 : 37) {
      std::memset(to, 0, sizeof to);
      copy_in_order(to + begin, from.data() + begin % 16, bytes);
      for (std::size_t i = 0; i < sizeof to; ++i) {
        const bool inside = i >= begin && i < begin + bytes;
        ASSERT_EQ(to[i], inside ? from[begin % 16 + i - begin] : std::byte{})
            << begin << " " << bytes << " " << i;
      }
    }
  }
}

// A piece is data that memcpy may store in any order; ordered data is cut into pieces.
TEST(CopyInOrder, NoPieceHoldsALinesEndAndEarlierBytes) {
  for (std::size_t within = 0; within < kOrderedLine; ++within) {
    for (std::size_t bytes = 0; bytes <= 3 * kOrderedLine + 1; ++bytes) {
      const OrderedPieces cut = ordered_pieces(within, bytes);
      std::vector<std::size_t> pieces(cut.head.begin(), cut.head.end());
      for (std::size_t line = 0; line < cut.lines; ++line) {
        pieces.insert(pieces.end(), {kOrderedData, kOrderedLine - kOrderedData});
      }
      pieces.insert(pieces.end(), cut.tail.begin(), cut.tail.end());
      std::size_t at = within;
      for (const std::size_t piece : pieces) {
        if (piece == 0) continue;
        const std::size_t last = at + piece - 1;
        ASSERT_EQ(at / kOrderedLine, last / kOrderedLine) << within << " " << bytes;
        ASSERT_EQ(at % kOrderedLine < kOrderedData, last % kOrderedLine < kOrderedData)
            << within << " " << bytes;
        at += piece;
      }
      ASSERT_EQ(at, within + bytes);
    }
  }
}

// ---- as another thread sees it -----------------------------------------------------------------

// A polling reader of NCCL's LL128: many rounds in which it takes the last 8 bytes of a line for a
// sign that all of the line and of those before are there.
TEST(CopyInOrder, AReaderThatSeesALinesEndSeesAllBeforeIt) {
  if (testing::kThreadSanitizer) GTEST_SKIP() << "a race by the language's rules, if not by NCCL's";
  constexpr std::uint64_t kRounds = 3000;
  constexpr std::size_t kLines = 5;
  using Line = std::array<std::uint64_t, 16>;
  alignas(128) static std::array<Line, kLines> to;
  to = {};
  std::atomic<std::uint64_t> done{0};
  const auto word = [](std::size_t line, std::size_t i) { return std::atomic_ref(to[line][i]); };
  std::uint64_t wrong = 0;
  std::thread reader([&] {
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      const std::size_t line = round % kLines;
      while (word(line, 15).load(std::memory_order_acquire) != round) std::this_thread::yield();
      for (std::size_t k = 0; k <= line; ++k) {
        for (std::size_t i = 0; i < 16; ++i) {
          wrong += word(k, i).load(std::memory_order_relaxed) != round ? 1 : 0;
        }
      }
      done = round;
    }
  });
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    std::array<Line, kLines> from;
    for (Line& line : from) line.fill(round);
    copy_in_order(to.data(), from.data(), sizeof from);
    while (done != round) std::this_thread::yield();
  }
  reader.join();
  EXPECT_EQ(wrong, 0U);
}

#ifdef __x86_64__

// A copy that runs one instruction at a time. What this processor has stored after each of them is
// what others see, and in this order.
struct Steps {
  const std::byte* to = nullptr;
  std::size_t bytes = 0;
  std::size_t steps = 0;
  std::size_t wrong = 0;  // after which the end of a line was there, and not all that is before it
};
Steps watched;

bool ends_a_line(std::size_t i) {
  return (reinterpret_cast<std::uintptr_t>(watched.to) + i) % 128 >= 120;
}

// Called after each step. Nothing that is copied is zero.
void look(int /*signal*/) {
  ++watched.steps;
  const auto* to = reinterpret_cast<const volatile unsigned char*>(watched.to);
  std::size_t missing = 0;
  while (missing < watched.bytes && to[missing] != 0) ++missing;
  // The end of a line may be stored in any order itself.
  while (missing < watched.bytes && ends_a_line(missing)) ++missing;
  for (std::size_t i = missing; i < watched.bytes; ++i) {
    if (!ends_a_line(i) || to[i] == 0) continue;
    ++watched.wrong;
    return;
  }
}

Steps copy_by_steps(std::byte* to, const std::byte* from, std::size_t bytes) {
  watched = {to, bytes, 0, 0};
  struct sigaction old {};
  struct sigaction each {};
  each.sa_handler = look;
  sigaction(SIGTRAP, &each, &old);
  // The trap flag, bit 8; below what the compiler may keep beneath the stack pointer.
  asm volatile(
      "lea -128(%%rsp), %%rsp; pushfq; orq $0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::
          : "memory", "cc");
  copy_in_order(to, from, bytes);
  asm volatile(
      "lea -128(%%rsp), %%rsp; pushfq; andq $~0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::
          : "memory", "cc");
  sigaction(SIGTRAP, &old, nullptr);
  return watched;
}

TEST(CopyInOrder, NoInstructionStoresALinesEndBeforeEarlierBytes) {
  if (testing::kThreadSanitizer || testing::kAddressSanitizer) {
    GTEST_SKIP() << "copies and signals are the sanitizer's";
  }
  alignas(128) std::array<std::byte, 1024> to;
  std::vector<std::byte> from(700);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i % 255 + 1);
  for (const std::size_t begin : {0U, 1U, 64U, 119U, 120U, 124U, 127U}) {
    for (const std::size_t bytes :
         {7U, 64U, 120U, 121U, 127U, 128U, 129U, 249U, 255U, 256U, 640U}) {
      to.fill(std::byte{});
      const Steps seen = copy_by_steps(to.data() + begin, from.data(), bytes);
      if (seen.steps < 3) GTEST_SKIP() << "this system has no single steps";
      EXPECT_EQ(seen.wrong, 0U) << bytes << " bytes from " << begin << " on";
      EXPECT_EQ(std::memcmp(to.data() + begin, from.data(), bytes), 0);
    }
  }
}

#endif

}  // namespace
}  // namespace ropewalk
