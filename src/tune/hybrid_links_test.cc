// Both classes of links between GPUs at once (setting HYBRID): where, with which shares, and at
// which price.
#include "tune/hybrid_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "tune/tuner.h"

namespace ropewalk::tune {
namespace {

constexpr int kAllChannels = 64;
constexpr int kHostChannels = 8;
constexpr std::size_t kHostChunk = std::size_t{128} << 10;
constexpr std::size_t kMebibyte = std::size_t{1} << 20;

// As two H100 were measured (benchmarks/results/hybrid-2xh100.txt).
DeviceConstants measured_constants() {
  DeviceConstants constants;
  constants.hybrid_rate = 40e9;
  constants.hybrid_one_way_rate = 50e9;
  return constants;
}

DeviceLimits hybrid_limits() {
  DeviceLimits limits;
  limits.channels = kAllChannels;
  limits.slot_bytes = {512 << 10, 8192, 61440};
  limits.hybrid_channels = kHostChannels;
  limits.hybrid_slot_bytes = kHostChunk;
  return limits;
}

HybridLinks measured_links() {
  return hybrid_links(measured_constants(), kHostChannels, kHostChunk);
}

Tuner hybrid_tuner(const char* setting, schedule::CheckedSchedules& schedules, int ranks = 2,
                   const DeviceConstants& constants = measured_constants()) {
  Config config = Config::load();
  config.set("TUNE", "0", "test");
  config.set("HYBRID", setting, "test");
  GroupFacts facts;
  facts.num_ranks = facts.max_ranks_per_host = ranks;
  const HybridLinks found = hybrid_links(constants, kHostChannels, kHostChunk);
  if (uses_hybrid_links(setting, constants, found)) facts.hybrid = found;
  return device_tuner(config, facts, hybrid_limits(), constants, schedules);
}

bool is_hybrid(const Choice& choice) {
  return choice.routed != nullptr && choice.routed->hybrid_channels > 0;
}

// ---- where they are made and used -------------------------------------------------------

TEST(HybridLinks, AreMadeAsTheSettingSays) {
  const GpuPlacement pair{.num_ranks = 2};
  EXPECT_TRUE(wants_hybrid_links("auto", pair));
  EXPECT_TRUE(wants_hybrid_links("on", pair));
  EXPECT_FALSE(wants_hybrid_links("off", pair));
  for (const GpuPlacement& only_on :
       {GpuPlacement{.num_ranks = 3}, GpuPlacement{.num_ranks = 2, .most_on_one_gpu = 2}}) {
    EXPECT_FALSE(wants_hybrid_links("auto", only_on));
    EXPECT_TRUE(wants_hybrid_links("on", only_on));
  }
  for (const GpuPlacement& never :
       {GpuPlacement{.num_ranks = 1}, GpuPlacement{.num_ranks = 4, .num_hosts = 2},
        GpuPlacement{.num_ranks = 2, .all_have_access = false}}) {
    EXPECT_FALSE(wants_hybrid_links("auto", never));
    EXPECT_FALSE(wants_hybrid_links("on", never));
  }
}

TEST(HybridLinks, AreUsedUnaskedOnlyWhereMeasuredRatesPromiseAGain) {
  EXPECT_TRUE(uses_hybrid_links("auto", measured_constants(), measured_links()));
  EXPECT_TRUE(uses_hybrid_links("on", measured_constants(), measured_links()));
  EXPECT_FALSE(uses_hybrid_links("off", measured_constants(), measured_links()));

  const DeviceConstants unknown;
  const HybridLinks built_in = hybrid_links(unknown, kHostChannels, kHostChunk);
  EXPECT_FALSE(uses_hybrid_links("auto", unknown, built_in));
  EXPECT_TRUE(uses_hybrid_links("on", unknown, built_in));
  EXPECT_GT(built_in.host_share(1, false, 1e9), 0);
  EXPECT_GT(built_in.host_share(1, true, 1e9), 0);

  DeviceConstants slow = measured_constants();
  slow.hybrid_rate = slow.link_rate / 40;
  EXPECT_FALSE(uses_hybrid_links("auto", slow, hybrid_links(slow, kHostChannels, kHostChunk)));
  EXPECT_TRUE(uses_hybrid_links("on", slow, hybrid_links(slow, kHostChannels, kHostChunk)));

  DeviceConstants half_known = measured_constants();
  half_known.hybrid_one_way_rate = 0;
  const HybridLinks half = hybrid_links(half_known, kHostChannels, kHostChunk);
  EXPECT_FALSE(uses_hybrid_links("auto", half_known, half));
  EXPECT_GT(half.host_share(1, true, 1e9), 0);

  EXPECT_FALSE(uses_hybrid_links("on", measured_constants(),
                                 hybrid_links(measured_constants(), 0, kHostChunk)));
}

// ---- shares -----------------------------------------------------------------------------

// Blink, equation 8: either class ends at the same time, set-up included.
TEST(HybridLinks, BothClassesEndTogether) {
  for (const bool one_way : {false, true}) {
    for (const int hops : {1, 2, 6}) {
      for (const double bytes : {0x1p27, 0x1p29, 0x1p32}) {
        const HybridLinks both = measured_links();
        const double share = both.host_share(hops, one_way, bytes);
        ASSERT_GT(share, 0);
        const double rate = one_way ? 50e9 : 0.8 * 40e9;
        const double setup = hops * (host_path().hop[0] + kHostChannels * 131072.0 / rate);
        const double by_host = setup + share * bytes / rate;
        const double direct = hops * measured_constants().hop[0] +
                              (1 - share) * bytes / measured_constants().link_rate;
        EXPECT_NEAR(by_host / direct, 1, 1e-9) << hops << " " << bytes;
      }
    }
  }
}

TEST(HybridLinks, TheShorterTheDataAndTheLongerThePathTheLessTheHostCarries) {
  const HybridLinks both = measured_links();
  const double by_rates = both.host_rate / (both.host_rate + both.direct_rate);
  double last = 0;
  for (double bytes = 0x1p20; bytes <= 0x1p40; bytes *= 4) {
    const double share = both.host_share(2, false, bytes);
    EXPECT_GE(share, last) << bytes;
    EXPECT_LE(both.host_share(3, false, bytes), share) << bytes;
    EXPECT_LT(share, by_rates) << bytes;
    last = share;
  }
  EXPECT_NEAR(last, by_rates, 1e-4);
  EXPECT_EQ(both.host_share(2, false, 0x1p20), 0);
  EXPECT_EQ(both.host_share(2, false, 0), 0);
  EXPECT_EQ(both.host_share(2, true, 0), 0);
}

// Two H100: of those tried, the shares that took least (benchmarks/results/hybrid-2xh100.txt).
TEST(HybridLinks, SharesAreNearThoseThatWereFastest) {
  EXPECT_NEAR(measured_links().host_share(2, false, 128 * kMebibyte), 0.07, 0.015);
  EXPECT_NEAR(measured_links().host_share(2, false, 512 * kMebibyte), 0.07, 0.015);
  EXPECT_NEAR(measured_links().host_share(1, true, 128 * kMebibyte), 0.115, 0.015);
  EXPECT_NEAR(measured_links().host_share(1, true, 512 * kMebibyte), 0.115, 0.015);
}

TEST(HybridLinks, AreMeasuredAlone) {
  HybridLinks alone;
  alone.channels = kHostChannels;
  alone.host_alone = true;
  EXPECT_EQ(alone.host_share(1, false, 1), 1);
}

// ---- candidates -------------------------------------------------------------------------

TEST(HybridCandidates, AreOfTheCollectivesThatGainAlone) {
  schedule::CheckedSchedules schedules;
  Tuner own = hybrid_tuner("on", schedules);
  for (int c = 0; c < kNumCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    const bool gains = collective == Collective::kAllReduce ||
                       collective == Collective::kAllGather || collective == Collective::kBroadcast;
    for (const Choice& choice : own.priced(collective, 0, kMebibyte)) {
      EXPECT_EQ(is_hybrid(choice), gains) << name(collective) << " " << choice.algorithm;
      EXPECT_EQ(choice.algorithm.starts_with("hybrid-"), gains) << choice.algorithm;
    }
  }
}

TEST(HybridCandidates, ChannelsHaveTheirShareOfTheWeight) {
  schedule::CheckedSchedules schedules;
  Tuner own = hybrid_tuner("auto", schedules, 4);
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kAllGather, Collective::kBroadcast}) {
    int found = 0;
    for (const Choice& choice : own.priced(collective, 0, 512 * kMebibyte)) {
      if (!is_hybrid(choice)) continue;
      ++found;
      const std::vector<int>& weight = choice.routed->checked->schedule().weight;
      ASSERT_EQ(weight.size(), std::size_t{kAllChannels}) << choice.algorithm;
      EXPECT_EQ(choice.routed->hybrid_channels, kHostChannels);
      EXPECT_GE(std::ranges::min(weight), 1);
      const auto first_of_host = weight.end() - kHostChannels;
      const double all = std::accumulate(weight.begin(), weight.end(), 0.0);
      EXPECT_NEAR(std::accumulate(first_of_host, weight.end(), 0.0) / all,
                  choice.routed->hybrid_share, 0.004)
          << choice.algorithm;
      EXPECT_EQ(std::set<int>(weight.begin(), first_of_host).size(), 1U);
      EXPECT_EQ(std::set<int>(first_of_host, weight.end()).size(), 1U);
    }
    EXPECT_GT(found, 1) << name(collective);
  }
}

// A share so small that a channel's part of it rounds to nothing.
TEST(HybridCandidates, EveryChannelHasAWeight) {
  schedule::CheckedSchedules schedules;
  DeviceConstants slow = measured_constants();
  slow.hybrid_rate = slow.hybrid_one_way_rate = slow.link_rate / 3000;
  Tuner own = hybrid_tuner("on", schedules, 2, slow);
  for (const Choice& choice : own.priced(Collective::kAllReduce, 0, 512 * kMebibyte)) {
    ASSERT_TRUE(is_hybrid(choice));
    EXPECT_LT(choice.routed->hybrid_share, 4e-4);
    EXPECT_EQ(choice.routed->checked->schedule().weight.back(), 1);
  }
}

TEST(HybridCandidates, OffThereAreNoneAndOnThereAreNoOthers) {
  schedule::CheckedSchedules schedules;
  Tuner off = hybrid_tuner("off", schedules);
  Tuner on = hybrid_tuner("on", schedules);
  for (std::size_t bytes = 8; bytes <= 512 * kMebibyte; bytes *= 8) {
    EXPECT_FALSE(is_hybrid(*off.choose(Collective::kAllReduce, 0, bytes))) << bytes;
    EXPECT_TRUE(is_hybrid(*on.choose(Collective::kAllReduce, 0, bytes))) << bytes;
  }
}

// ---- prices -----------------------------------------------------------------------------

TEST(HybridPrices, ChunksFitTheSlotsOfTheHostsLinks) {
  schedule::CheckedSchedules schedules;
  for (const int ranks : {2, 4}) {
    Tuner on = hybrid_tuner("on", schedules, ranks);
    for (const std::size_t bytes : {kMebibyte, 64 * kMebibyte, 1024 * kMebibyte}) {
      for (const Choice& choice : on.priced(Collective::kAllReduce, 0, bytes)) {
        EXPECT_LE(choice.chunk_bytes, kHostChunk) << choice.algorithm << " " << bytes;
        EXPECT_EQ(choice.protocol, executor::Protocol::kSimple);
        EXPECT_EQ(choice.channels, kAllChannels);
      }
    }
  }
}

TEST(HybridPrices, BothClassesAreChosenWhereTheyGain) {
  schedule::CheckedSchedules schedules;
  Tuner own = hybrid_tuner("auto", schedules);
  for (const Collective collective : {Collective::kAllReduce, Collective::kBroadcast}) {
    for (std::size_t bytes = 8; bytes <= 4 * kMebibyte; bytes *= 8) {
      EXPECT_FALSE(is_hybrid(*own.choose(collective, 0, bytes))) << name(collective) << bytes;
    }
    for (const std::size_t bytes : {256 * kMebibyte, 1024 * kMebibyte}) {
      const std::vector<Choice> all = own.priced(collective, 0, bytes);
      EXPECT_TRUE(is_hybrid(all.front())) << name(collective) << bytes;
      const auto plain = std::ranges::find_if_not(all, is_hybrid);
      ASSERT_NE(plain, all.end());
      const double gained = plain->predicted_seconds / all.front().predicted_seconds;
      EXPECT_GT(gained, 1.02) << name(collective) << bytes;
      EXPECT_LT(gained, 1 + 50.0 / 350) << "more than both rates together";
    }
  }
}

// Single blocks, and not links, limit an all-gather between two GPUs (but for those in clusters).
TEST(HybridPrices, WhereBlocksLimitNothingIsGainedByFurtherLinks) {
  schedule::CheckedSchedules schedules;
  Tuner own = hybrid_tuner("auto", schedules);
  for (std::size_t bytes = 8; bytes <= 1024 * kMebibyte; bytes *= 8) {
    EXPECT_FALSE(is_hybrid(*own.choose(Collective::kAllGather, 0, bytes))) << bytes;
  }
}

// Candidates of one name differ by their shares, and so do their schedules.
TEST(HybridPrices, LongerDataTakesALargerShareWithItsOwnSchedule) {
  schedule::CheckedSchedules schedules;
  Tuner on = hybrid_tuner("on", schedules);
  std::set<double> shares;
  double last = 0;
  for (std::size_t bytes = 32 * kMebibyte; bytes <= 4096 * kMebibyte; bytes *= 4) {
    const auto choice = on.choose(Collective::kAllReduce, 0, bytes);
    EXPECT_GE(choice->routed->hybrid_share, last) << bytes;
    EXPECT_EQ(choice->schedule, choice->routed->checked) << bytes;
    last = choice->routed->hybrid_share;
    shares.insert(last);
  }
  EXPECT_GT(shares.size(), 2U);
}

// What a second class of links costs is more than so little data gains there.
TEST(HybridPrices, ShortDataHasNoSmallShare) {
  schedule::CheckedSchedules schedules;
  Tuner tuner = hybrid_tuner("auto", schedules);
  EXPECT_FALSE(is_hybrid(*tuner.choose(Collective::kAllReduce, 0, 32 * kMebibyte)));
  EXPECT_TRUE(is_hybrid(*tuner.choose(Collective::kBroadcast, 0, 32 * kMebibyte)));
  for (const Choice& choice : tuner.priced(Collective::kAllReduce, 0, 32 * kMebibyte)) {
    if (!is_hybrid(choice)) continue;
    EXPECT_GT(choice.routed->hybrid_share, 0.03);
  }
}

// Of all that cost the same one is enough, since each is made anew when rates change.
TEST(HybridPrices, AlgorithmsThatAnotherEqualsAreNoCandidates) {
  schedule::CheckedSchedules schedules;
  Tuner tuner = hybrid_tuner("auto", schedules);
  std::set<std::string> sent;
  for (const Choice& choice : tuner.priced(Collective::kBroadcast, 0, 512 * kMebibyte)) {
    if (is_hybrid(choice)) sent.insert(choice.algorithm);
  }
  EXPECT_EQ(sent, std::set<std::string>{"hybrid-ring"});
  std::set<std::string> reduced;
  for (const Choice& choice : tuner.priced(Collective::kAllReduce, 0, 512 * kMebibyte)) {
    if (is_hybrid(choice)) reduced.insert(choice.algorithm);
  }
  // One with less work, one with fewer hops.
  EXPECT_EQ(reduced, (std::set<std::string>{"hybrid-recursive_doubling", "hybrid-ring"}));
}

// The slower links to set up: a share of theirs takes longer by the hops and their first chunks.
TEST(HybridPrices, TheLaterClassEndsTheCall) {
  schedule::CheckedSchedules schedules;
  Tuner on = hybrid_tuner("on", schedules);
  const std::size_t bytes = 512 * kMebibyte;
  int checked = 0;
  for (const Choice& choice : on.priced(Collective::kBroadcast, 0, bytes)) {
    if (choice.algorithm != "hybrid-ring") continue;
    ++checked;
    const double by_host = choice.routed->hybrid_share * static_cast<double>(bytes) /
                           measured_constants().hybrid_one_way_rate;
    EXPECT_GE(choice.predicted_seconds, by_host + host_path().hop[0]);
    EXPECT_GE(choice.predicted_seconds, (1 - choice.routed->hybrid_share) *
                                            static_cast<double>(bytes) /
                                            measured_constants().link_rate);
  }
  EXPECT_GT(checked, 0);
}

// ---- corrected by what calls take --------------------------------------------------------

double share_of(const Choice& choice) { return choice.routed->hybrid_share; }

TEST(HybridLinks, ACorrectedRateGivesTheHostsLinksAnotherShareOfOperationsWithoutARoot) {
  schedule::CheckedSchedules schedules;
  Tuner tuner = hybrid_tuner("auto", schedules);
  constexpr std::size_t kLong = 512 * kMebibyte;
  const auto reduced = tuner.choose(Collective::kAllReduce, 0, kLong / 2);
  const auto sent = tuner.choose(Collective::kBroadcast, 0, kLong);
  ASSERT_TRUE(is_hybrid(*reduced) && is_hybrid(*sent));
  EXPECT_TRUE(tuner.scale_hybrid(0.5));
  const auto less = tuner.choose(Collective::kAllReduce, 0, kLong / 2);
  EXPECT_NEAR(share_of(*less) / share_of(*reduced), 0.47, 0.1);
  EXPECT_GT(less->predicted_seconds, reduced->predicted_seconds);
  EXPECT_EQ(less->routed->hybrid_scale, 0.5);
  EXPECT_NE(less->schedule, reduced->schedule);
  EXPECT_EQ(share_of(*tuner.choose(Collective::kBroadcast, 0, kLong)), share_of(*sent));
  EXPECT_TRUE(tuner.scale_hybrid(1));
  EXPECT_EQ(share_of(*tuner.choose(Collective::kAllReduce, 0, kLong / 2)), share_of(*reduced));
}

TEST(HybridLinks, ARateThatGainsNothingLeavesTheLinksBetweenGpus) {
  schedule::CheckedSchedules schedules;
  Tuner tuner = hybrid_tuner("auto", schedules);
  ASSERT_TRUE(is_hybrid(*tuner.choose(Collective::kAllReduce, 0, 256 * kMebibyte)));
  EXPECT_TRUE(tuner.scale_hybrid(1e-6));
  EXPECT_FALSE(is_hybrid(*tuner.choose(Collective::kAllReduce, 0, 256 * kMebibyte)));
  // There is nothing left to correct.
  EXPECT_FALSE(tuner.scale_hybrid(1));
  // Where the setting leaves no other, others serve.
  Tuner alone = hybrid_tuner("on", schedules);
  ASSERT_TRUE(is_hybrid(*alone.choose(Collective::kAllReduce, 0, 256 * kMebibyte)));
  EXPECT_TRUE(alone.scale_hybrid(1e-6));
  EXPECT_FALSE(is_hybrid(*alone.choose(Collective::kAllReduce, 0, 256 * kMebibyte)));
}

TEST(HybridLinks, WithoutThemThereIsNothingToCorrect) {
  schedule::CheckedSchedules schedules;
  Tuner tuner = hybrid_tuner("off", schedules);
  (void)tuner.choose(Collective::kAllReduce, 0, 64 * kMebibyte);
  EXPECT_FALSE(tuner.scale_hybrid(2));
}

}  // namespace
}  // namespace ropewalk::tune
