#include "tune/chunk_controller.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>
#include <vector>

namespace ropewalk::tune {
namespace {

constexpr std::size_t operator""_KiB(unsigned long long n) { return n << 10U; }
constexpr std::size_t operator""_MiB(unsigned long long n) { return n << 20U; }

using Times = std::function<double(std::size_t chunk_bytes)>;

// A chain: fewer, larger chunks cost less each, and fill it later. Best at 512 KiB.
double chain(std::size_t chunk) {
  constexpr double kMessage = 64 << 20U;
  constexpr double kHops = 8;
  constexpr double kAlpha = 512.0 * 512 * 1024 * 1024 * (kHops - 1) / kMessage;
  return (kHops - 1 + kMessage / static_cast<double>(chunk)) *
         (kAlpha + static_cast<double>(chunk)) * 1e-10;
}

struct Search {
  int calls = 0;
  std::set<std::size_t> tried;
};

// Calls as a communicator does: what is wanted after call n is the chunk of call n + 2.
Search run(ChunkController& controller, const Times& times, int most = 2000) {
  Search search;
  ChunkCode now = controller.wanted();
  while (!controller.settled() && search.calls < most) {
    const ChunkCode next = controller.wanted();
    search.tried.insert(chunk_bytes(now));
    controller.measured(now, times(chunk_bytes(now)));
    now = next;
    ++search.calls;
  }
  return search;
}

ChunkController from(std::size_t start, std::size_t least = 16_KiB, std::size_t most = 16_MiB) {
  return {chunk_code(start), chunk_code(least), chunk_code(most)};
}

TEST(ChunkCode, SizesAreEightToAnOctave) {
  EXPECT_EQ(chunk_bytes(chunk_code(4096)), 4096U);
  EXPECT_EQ(chunk_bytes(static_cast<ChunkCode>(chunk_code(4096) + 1)), 4608U);
  EXPECT_EQ(chunk_bytes(static_cast<ChunkCode>(chunk_code(4096) + 8)), 8192U);
  EXPECT_EQ(chunk_bytes(chunk_code(128)), 128U);
  EXPECT_EQ(chunk_code(128), 1);
}

TEST(ChunkCode, SizesInBetweenAreRoundedDown) {
  for (std::size_t bytes = 128; bytes < 64_MiB; bytes += 1 + bytes / 13) {
    const ChunkCode code = chunk_code(bytes);
    EXPECT_LE(chunk_bytes(code), bytes);
    EXPECT_GT(chunk_bytes(static_cast<ChunkCode>(code + 1)), bytes);
    EXPECT_EQ(chunk_code(chunk_bytes(code)), code);
  }
}

TEST(ChunkController, FindsTheBestFromAChunkThatIsTooSmall) {
  ChunkController controller = from(16_KiB);
  const Search search = run(controller, chain);
  EXPECT_TRUE(controller.settled());
  EXPECT_LT(chain(chunk_bytes(controller.wanted())), 1.04 * chain(512_KiB));
  EXPECT_NEAR(controller.gain(), chain(16_KiB) / chain(chunk_bytes(controller.wanted())), 1e-9);
  EXPECT_LT(search.calls, 150);
}

TEST(ChunkController, FindsTheBestFromAChunkThatIsTooLarge) {
  ChunkController controller = from(16_MiB);
  const Search search = run(controller, chain);
  EXPECT_TRUE(controller.settled());
  EXPECT_LT(chain(chunk_bytes(controller.wanted())), 1.05 * chain(512_KiB));
  EXPECT_LT(search.calls, 300);
}

TEST(ChunkController, StaysWhereNothingIsBetter) {
  for (const Times& times : {Times(chain), Times([](std::size_t) { return 1e-3; })}) {
    ChunkController controller = from(512_KiB);
    const Search search = run(controller, times);
    EXPECT_EQ(chunk_bytes(controller.wanted()), 512_KiB);
    EXPECT_EQ(controller.gain(), 1);
    EXPECT_LT(search.calls, 60);
  }
}

TEST(ChunkController, GrowsByDoublingAndShrinksBySteps) {
  ChunkController controller = from(256_KiB, 16_KiB, 1_MiB);
  std::vector<std::size_t> wanted;
  ChunkCode last = kNoChunk;
  while (!controller.settled()) {
    if (controller.wanted() != last) wanted.push_back(chunk_bytes(controller.wanted()));
    last = controller.wanted();
    const double octaves = std::log2(static_cast<double>(chunk_bytes(last)) / (512 << 10U));
    controller.measured(last, 1 + octaves * octaves / 8);
  }
  // 512 KiB is better, 1 MiB is not, nor is what lies between, nor two steps beyond; then the start
  // and the best once more.
  EXPECT_EQ(wanted, (std::vector<std::size_t>{256_KiB, 512_KiB, 1_MiB, 896_KiB, 768_KiB, 640_KiB,
                                              448_KiB, 384_KiB, 256_KiB, 512_KiB}));
}

TEST(ChunkController, KeepsItsBounds) {
  ChunkController growing = from(64_KiB, 32_KiB, 128_KiB);
  for (const std::size_t chunk :
       run(growing, [](std::size_t c) { return 1e9 / static_cast<double>(c); }).tried) {
    EXPECT_GE(chunk, 32_KiB);
    EXPECT_LE(chunk, 128_KiB);
  }
  EXPECT_EQ(chunk_bytes(growing.wanted()), 128_KiB);
  ChunkController shrinking = from(64_KiB, 32_KiB, 128_KiB);
  for (const std::size_t chunk :
       run(shrinking, [](std::size_t c) { return static_cast<double>(c) * 1e-9; }).tried) {
    EXPECT_GE(chunk, 32_KiB);
  }
  EXPECT_EQ(chunk_bytes(shrinking.wanted()), 32_KiB);
}

TEST(ChunkController, EndsWhateverTheTimes) {
  unsigned state = 1;
  const auto noise = [&](std::size_t) {
    state = state * 1664525U + 1013904223U;
    return 1e-3 * (1 + state % 1000);
  };
  for (int round = 0; round < 100; ++round) {
    ChunkController controller = from(256_KiB);
    EXPECT_LE(run(controller, noise, 5000).calls, 2 * ChunkController::kMostCalls);
    EXPECT_TRUE(controller.settled());
  }
}

TEST(ChunkController, ALateRankDoesNotCount) {
  ChunkController controller = from(64_KiB);
  int call = 0;
  // Every third call waits for a rank that comes late.
  (void)run(controller, [&](std::size_t c) { return chain(c) + (++call % 3 == 0 ? 1 : 0); });
  EXPECT_LT(chain(chunk_bytes(controller.wanted())), 1.05 * chain(512_KiB));
}

// What was better only while the machine was less busy is given up.
TEST(ChunkController, GainIsCheckedAgainstTheStart) {
  ChunkController controller = from(512_KiB);
  int call = 0;
  (void)run(controller, [&](std::size_t) { return ++call < 10 ? 2e-3 : 1e-3; });
  EXPECT_EQ(chunk_bytes(controller.wanted()), 512_KiB);
  EXPECT_EQ(controller.gain(), 1);
}

TEST(ChunkController, OtherChunksThanTheWantedSayNothing) {
  ChunkController controller = from(512_KiB);
  for (int call = 0; call < 100; ++call) controller.measured(chunk_code(64_KiB), 1e-9);
  EXPECT_EQ(chunk_bytes(controller.wanted()), 512_KiB);
  EXPECT_FALSE(controller.settled());
}

TEST(ChunkController, SearchesAgainWhenCallsTakeLonger) {
  ChunkController controller = from(512_KiB);
  (void)run(controller, chain);
  const auto call = [&](const Times& times) {
    controller.measured(controller.wanted(), times(chunk_bytes(controller.wanted())));
  };
  for (int i = 0; i < 4 * ChunkController::kWatched; ++i) call(chain);
  EXPECT_TRUE(controller.settled());
  // Now messages cost much more: larger chunks are better.
  const Times slower = [](std::size_t c) {
    return 3 * chain(512_KiB) + 1e3 / static_cast<double>(c);
  };
  for (int i = 0; i < 2 * ChunkController::kWatched && controller.settled(); ++i) call(slower);
  EXPECT_FALSE(controller.settled());
  // Not for ever.
  double worse = 1;
  int searches = 0;
  for (int i = 0; i < 100000; ++i) {
    const bool settled = controller.settled();
    call([&](std::size_t) { return worse; });
    if (settled && !controller.settled()) ++searches;
    if (i % 200 == 0) worse *= 1.01 + 0.5 * (searches % 2);
  }
  EXPECT_LE(searches, ChunkController::kMostSearches);
}

}  // namespace
}  // namespace ropewalk::tune
