#include "tune/device_pricing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "executor/block/launch.h"
#include "schedule/checked.h"
#include "tune/tuner.h"

namespace ropewalk::tune {
namespace {

using executor::Protocol;

Config priced_config(const std::vector<std::pair<const char*, const char*>>& settings = {}) {
  Config config = Config::load();
  for (const auto& [name, value] : settings) config.set(name, value, "test");
  return config;
}

DeviceLimits nvlink() {
  DeviceLimits limits;
  limits.channels = 64;
  limits.slot_bytes = {128 << 10, 8192, 20400};
  return limits;
}

Candidate candidate(const char* algorithm, Collective collective, int ranks, int channels = 1) {
  const auto checked =
      schedule::CheckedSchedules().get(algorithm, {collective, ranks, 0, channels});
  return {.algorithm = algorithm, .channels = channels, .shape = ScheduleShape::of(*checked)};
}

const Candidate kRing = candidate("ring", Collective::kAllReduce, 4);

TEST(AllowedProtocols, TheNamedOneWhereLinksHaveIt) {
  const std::vector<Protocol> all = {Protocol::kLl, Protocol::kLl128, Protocol::kSimple};
  EXPECT_EQ(allowed_protocols(priced_config(), all), all);
  EXPECT_EQ(allowed_protocols(priced_config({{"PROTOCOL", "ll"}}), all),
            std::vector<Protocol>{Protocol::kLl});
  const std::vector<Protocol> simple = {Protocol::kSimple};
  EXPECT_EQ(allowed_protocols(priced_config({{"PROTOCOL", "ll128"}}), simple), simple);
}

// Four GPUs on each of two hosts: what leaves a host limits, as data and not as messages.
TEST(DevicePricing, OverANetworkLongAllReducesAreHierarchical) {
  DeviceLimits limits = nvlink();
  limits.network = true;
  DeviceConstants constants;
  const DevicePricing pricing(priced_config(), limits, constants);
  const std::vector<int> hosts = {0, 0, 0, 0, 1, 1, 1, 1};
  const double bytes = 512 << 20;
  const auto seconds = [&](const char* algorithm) {
    const auto checked =
        schedule::CheckedSchedules().get(algorithm, {Collective::kAllReduce, 8, 0, 1, {}, hosts});
    const Candidate of{
        .algorithm = algorithm, .channels = 1, .shape = ScheduleShape::of(*checked, hosts)};
    return pricing.price(of, static_cast<std::size_t>(bytes)).predicted_seconds;
  };
  EXPECT_NEAR(seconds("hierarchical"), bytes / constants.network_rate,
              0.05 * bytes / constants.network_rate);
  EXPECT_NEAR(seconds("ring") / seconds("hierarchical"), 14.0 / 8, 0.05);
  EXPECT_NEAR(seconds("two_shot") / seconds("hierarchical"), 4, 0.1);
}

// Hosts with unequally many GPUs: hierarchical schedules are candidates, and taken unasked.
TEST(DevicePricing, OverUnequalHostsHierarchicalSchedulesAreChosen) {
  DeviceLimits limits = nvlink();
  limits.network = true;
  limits.channels = 16;
  const auto algorithms = [&](const std::vector<int>& hosts, Collective collective,
                              std::size_t bytes) {
    GroupFacts facts;
    facts.num_ranks = static_cast<int>(hosts.size());
    facts.num_hosts = 2;
    facts.max_ranks_per_host = static_cast<int>(std::ranges::count(hosts, 0));
    facts.host_of_rank = hosts;
    schedule::CheckedSchedules schedules;
    Tuner tuner = device_tuner(Config::load(), facts, limits, DeviceConstants(), schedules);
    std::vector<std::string> names = {tuner.choose(collective, 0, bytes)->algorithm};
    for (const Choice& each : tuner.priced(collective, 0, bytes)) names.push_back(each.algorithm);
    return names;
  };
  const std::vector<int> two_and_one = {0, 0, 1};
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce}) {
    EXPECT_THAT(algorithms(two_and_one, collective, 64 << 20), ::testing::Contains("hierarchical"));
  }
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{64} << 20}) {
    EXPECT_EQ(algorithms(two_and_one, Collective::kAllGather, bytes).front(), "hierarchical");
    EXPECT_EQ(algorithms(two_and_one, Collective::kReduceScatter, bytes).front(), "hierarchical");
  }
  const std::vector<int> three_and_two = {0, 0, 0, 1, 1};
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce}) {
    EXPECT_EQ(algorithms(three_and_two, collective, 64 << 20).front(), "hierarchical");
  }
}

// Two GPUs on each of two hosts, as they were measured (benchmarks/results/hierarchical.txt).
class TwoHosts : public ::testing::Test {
 protected:
  // Of `algorithm` for so many bytes of a unit.
  Choice priced(const char* algorithm, Collective collective, bool by_network, std::size_t bytes) {
    DeviceLimits limits = nvlink();
    limits.network = by_network;
    limits.channels = by_network ? 16 : 32;
    if (by_network) limits.slot_bytes[2] = 0;
    if (!by_network) limits.host_path_slot_bytes = {64 << 10, 8192, 0};
    // As candidates are: of one channel, but for pairs that only some of all channels use.
    const auto checked = schedules_.get(algorithm, {collective, 4, 0, 1, {}, kHosts});
    const auto eight = schedules_.get(algorithm, {collective, 4, 0, 8, {}, kHosts});
    Candidate candidate{
        .algorithm = algorithm, .channels = 1, .shape = ScheduleShape::of(*checked, kHosts)};
    if (!by_network) candidate.shape.host_path_units = units_over(eight->schedule(), kBetween);
    return DevicePricing(priced_config(), limits, {}).price(candidate, bytes);
  }
  double seconds(const char* algorithm, Collective collective, bool by_network, std::size_t bytes) {
    return priced(algorithm, collective, by_network, bytes).predicted_seconds;
  }
  static constexpr std::size_t kLong = std::size_t{64} << 20;

 private:
  const std::vector<int> kHosts = {0, 0, 1, 1};
  const std::vector<std::pair<int, int>> kBetween = {{0, 2}, {0, 3}, {1, 2}, {1, 3}};
  schedule::CheckedSchedules schedules_;
};

TEST_F(TwoHosts, LongDataOverWindowsIsBoundByWhatLeavesAHost) {
  const double bytes = kLong;
  const double rate = host_path().network_rate;
  const auto near = [](double ratio, double of) { return std::abs(ratio / of - 1) < 0.1; };
  EXPECT_PRED2(near, seconds("hierarchical", Collective::kAllReduce, false, kLong), bytes / rate);
  EXPECT_PRED2(near, seconds("ring", Collective::kAllReduce, false, kLong), 1.5 * bytes / rate);
  EXPECT_PRED2(near, seconds("double_binary_tree", Collective::kAllReduce, false, kLong),
               2 * bytes / rate);
  // Data that goes in one direction has more room.
  EXPECT_LT(seconds("hierarchical", Collective::kBroadcast, false, kLong), bytes / rate);
}

TEST_F(TwoHosts, LongBroadcastsOverANetworkGoByAsManyLinksAsAHostHasRanks) {
  for (const std::size_t bytes : {kLong / 16, kLong / 4, kLong}) {
    const double by_two = seconds("hierarchical", Collective::kBroadcast, true, bytes);
    EXPECT_GT(seconds("chain", Collective::kBroadcast, true, bytes), 1.6 * by_two) << bytes;
    EXPECT_GT(seconds("direct", Collective::kBroadcast, true, bytes), 1.6 * by_two) << bytes;
  }
}

TEST_F(TwoHosts, ShortCallsOverANetworkHaveFewMessagesAndLlThatIsNotLong) {
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{1024}}) {
    const Choice hierarchical = priced("hierarchical", Collective::kAllGather, true, bytes);
    EXPECT_EQ(hierarchical.protocol, Protocol::kLl);
    EXPECT_LT(1.3 * hierarchical.predicted_seconds,
              seconds("direct", Collective::kAllGather, true, bytes));
    EXPECT_LT(1.3 * hierarchical.predicted_seconds,
              seconds("ring", Collective::kAllGather, true, bytes));
  }
  // Its flags stay on either side of the network; the thread that lays words out has a rate.
  EXPECT_EQ(priced("hierarchical", Collective::kBroadcast, true, kLong).protocol,
            Protocol::kSimple);
}

TEST_F(TwoHosts, HopsWithinAHostTakeWhatTheyTakeThere) {
  const DeviceConstants here;
  const DeviceConstants far = host_path();
  // Of three hops one is between the hosts.
  const auto ll = static_cast<std::size_t>(Protocol::kLl);
  EXPECT_NEAR(seconds("chain", Collective::kBroadcast, false, 8),
              far.launch[ll] + far.hop[ll] + 2 * here.hop[ll], 0.2e-6);
}

// GPUs 0 and 3, and 1 and 2, without access to each other's memory.
const std::vector<std::pair<int, int>> kDiagonals = {{0, 3}, {1, 2}};

Candidate beside_diagonals(const char* algorithm, std::vector<int> order) {
  const auto checked = schedule::CheckedSchedules().get(
      algorithm, {Collective::kAllReduce, 4, 0, 1, std::move(order)});
  Candidate candidate{.algorithm = algorithm, .channels = 1, .shape = ScheduleShape::of(*checked)};
  candidate.shape.host_path_units = units_over(checked->schedule(), kDiagonals);
  return candidate;
}

DeviceLimits nvlink_and_host_path() {
  DeviceLimits limits = nvlink();
  limits.host_path_slot_bytes = {64 << 10, 8192, 0};
  return limits;
}

TEST(DevicePricing, ARingBesidePairsWithoutAccessTakesWhatItTookWithAll) {
  const DevicePricing pricing(priced_config(), nvlink_and_host_path(), {});
  const std::size_t bytes = std::size_t{128} << 20;
  const Candidate through = beside_diagonals("ring", {});
  const Candidate beside = beside_diagonals("ring", {0, 1, 3, 2});
  EXPECT_DOUBLE_EQ(through.shape.host_path_units, 1.5);
  EXPECT_DOUBLE_EQ(beside.shape.host_path_units, 0);
  EXPECT_DOUBLE_EQ(pricing.price(beside, bytes).predicted_seconds,
                   pricing.price(kRing, bytes).predicted_seconds);
  const Choice slow = pricing.price(through, bytes);
  EXPECT_GE(slow.predicted_seconds, 1.5 * static_cast<double>(bytes) / host_path().link_rate);
  EXPECT_LE(slow.chunk_bytes, std::size_t{64} << 10);
  // Two units in three of a direct exchange go to the others.
  const Candidate direct = beside_diagonals("two_shot", {});
  EXPECT_GT(direct.shape.host_path_units, 0);
  EXPECT_LT(direct.shape.host_path_units, 1);
}

TEST(DevicePricing, LinksThroughTheHostHaveNoLl128) {
  const Candidate through = beside_diagonals("ring", {});
  const DevicePricing free(priced_config(), nvlink_and_host_path(), {});
  const DevicePricing forced(priced_config({{"PROTOCOL", "ll128"}}), nvlink_and_host_path(), {});
  for (std::size_t bytes = 8; bytes <= std::size_t{64} << 20; bytes *= 8) {
    EXPECT_NE(free.price(through, bytes).protocol, Protocol::kLl128) << bytes;
    EXPECT_EQ(forced.price(through, bytes).protocol, Protocol::kSimple) << bytes;
    EXPECT_EQ(forced.price(kRing, bytes).protocol, Protocol::kLl128) << bytes;
    EXPECT_NE(free.message_by_host_path(bytes).protocol, Protocol::kLl128) << bytes;
  }
}

TEST(DevicePricing, BlocksStayWithinTheirBounds) {
  DeviceLimits limits = nvlink();
  limits.channels = 6;
  limits.message_channels = 3;
  limits.least_channels = 4;
  const DevicePricing pricing(priced_config(), limits, {});
  for (std::size_t bytes = 8; bytes <= std::size_t{512} << 20; bytes *= 4) {
    const Choice choice = pricing.price(kRing, bytes);
    EXPECT_GE(choice.channels, 4) << bytes;
    EXPECT_LE(choice.channels, 6) << bytes;
    EXPECT_LE(pricing.message(bytes).channels, 3) << bytes;
  }
  // More than there are of.
  limits.least_channels = 64;
  EXPECT_EQ(DevicePricing(priced_config(), limits, {}).price(kRing, 8).channels, 6);
}

TEST(DevicePricing, ShortCallsCarryFlagsAndLongOnesFillTheLink) {
  const DevicePricing pricing(priced_config(), nvlink(), {});
  const Choice shortest = pricing.price(kRing, 8);
  EXPECT_NE(shortest.protocol, Protocol::kSimple);
  EXPECT_EQ(shortest.channels, 1);
  const Choice longest = pricing.price(kRing, std::size_t{512} << 20);
  EXPECT_EQ(longest.protocol, Protocol::kSimple);
  EXPECT_EQ(longest.channels, nvlink().channels);
  EXPECT_EQ(longest.threads, static_cast<int>(executor::kMaxThreads));
  // Of four ranks each sends one and a half times what it has.
  const double limit = 1.5 * (512 << 20) / DeviceConstants().link_rate;
  EXPECT_GE(longest.predicted_seconds, limit);
  EXPECT_LT(longest.predicted_seconds, 1.3 * limit);
}

TEST(DevicePricing, BlocksMakeUpWholeClusters) {
  EXPECT_EQ(whole_clusters(7, 64, 4), 7);  // less than two clusters
  EXPECT_EQ(whole_clusters(8, 64, 4), 8);
  EXPECT_EQ(whole_clusters(9, 64, 4), 12);
  EXPECT_EQ(whole_clusters(22, 22, 4), 20);
  EXPECT_EQ(whole_clusters(22, 64, 1), 22);
  DeviceLimits limits = nvlink();
  limits.channels = 30;
  limits.cluster = 4;
  const DevicePricing pricing(priced_config(), limits, {});
  for (std::size_t bytes = 8; bytes <= std::size_t{512} << 20; bytes *= 2) {
    const int channels = pricing.price(kRing, bytes).channels;
    EXPECT_LE(channels, 28) << bytes;
    EXPECT_TRUE(channels < 8 || channels % 4 == 0) << bytes << " " << channels;
  }
  // What is asked for holds all the same.
  EXPECT_EQ(DevicePricing(priced_config({{"CHANNELS", "9"}}), limits, {}).price(kRing, 8).channels,
            9);
}

TEST(DevicePricing, HalfTheBlocksWhereTheyFillTheLinksAllTheSame) {
  DeviceLimits limits = nvlink();
  limits.cluster = 4;
  const std::size_t bytes = std::size_t{128} << 20;
  const DevicePricing pricing(priced_config(), limits, {});
  EXPECT_EQ(pricing.price(kRing, bytes).channels, 32);
  const Candidate exchange = candidate("direct", Collective::kAllToAll, 4);
  EXPECT_EQ(pricing.price(exchange, bytes).channels, 64);    // a copy of each rank's own
  EXPECT_EQ(pricing.price(kRing, bytes / 32).channels, 64);  // too few chunks for that
  limits.least_channels = 48;
  EXPECT_EQ(DevicePricing(priced_config(), limits, {}).price(kRing, bytes).channels, 48);
  limits = nvlink();
  EXPECT_EQ(DevicePricing(priced_config(), limits, {}).price(kRing, bytes).channels, 64);
}

TEST(DevicePricing, RanksThatSendToSeveralInTurnFillLinksLess) {
  const DevicePricing pricing(priced_config(), nvlink(), {});
  const std::size_t bytes = std::size_t{512} << 20;
  const auto seconds = [&](const char* algorithm, int ranks) {
    return pricing.price(candidate(algorithm, Collective::kAllReduce, ranks), bytes)
        .predicted_seconds;
  };
  EXPECT_GT(seconds("two_shot", 4), 1.03 * seconds("ring", 4));
  EXPECT_NEAR(seconds("two_shot", 2), seconds("ring", 2), 0.02 * seconds("ring", 2));
}

// As measured on four H100: 262 GB/s by the ring at 32 MiB, 206 by halving, 242 in one shot.
TEST(DevicePricing, LongExchangesOfFourGoRoundARing) {
  DeviceLimits limits = nvlink();
  limits.cluster = 4;
  const DevicePricing pricing(priced_config(), limits, {});
  for (const Collective collective : {Collective::kReduceScatter, Collective::kAllGather}) {
    for (const std::size_t unit : {std::size_t{8} << 20, std::size_t{128} << 20}) {
      const auto seconds = [&](const char* algorithm) {
        return pricing.price(candidate(algorithm, collective, 4), unit).predicted_seconds;
      };
      EXPECT_LT(seconds("ring"), seconds("one_shot")) << name(collective) << " " << unit;
      EXPECT_LT(seconds("ring"), seconds("recursive_doubling")) << name(collective) << " " << unit;
    }
  }
}

// Ranks behind a root wait until the first chunks have come through all before them.
TEST(DevicePricing, RootedPipelinesTakeTheirTimeToFill) {
  const DevicePricing pricing(priced_config(), nvlink(), {});
  const std::size_t bytes = std::size_t{128} << 20;
  const auto seconds = [&](const char* algorithm) {
    return pricing.price(candidate(algorithm, Collective::kBroadcast, 4), bytes).predicted_seconds;
  };
  const double link = static_cast<double>(bytes) / DeviceConstants().link_rate;
  EXPECT_GT(seconds("chain"), 1.08 * link);
}

TEST(DevicePricing, PredictsNoLessForMore) {
  const DevicePricing pricing(priced_config(), nvlink(), {});
  double before = 0;
  for (std::size_t bytes = 8; bytes <= std::size_t{1} << 30; bytes *= 8) {
    const Choice choice = pricing.price(kRing, bytes);
    EXPECT_GE(choice.predicted_seconds, before) << bytes;
    EXPECT_LE(choice.chunk_bytes, nvlink().slot_bytes[static_cast<std::size_t>(choice.protocol)]);
    before = choice.predicted_seconds;
  }
}

TEST(DevicePricing, SettingsGiveChannelsAndThreads) {
  const Config config = priced_config({{"CHANNELS", "5"}, {"DEVICE_THREADS", "100"}});
  const Choice choice = DevicePricing(config, nvlink(), {}).price(kRing, 8);
  EXPECT_EQ(choice.channels, 5);
  EXPECT_EQ(choice.threads, 96);  // whole warps
  EXPECT_EQ(
      DevicePricing(priced_config({{"CHANNELS", "99"}}), nvlink(), {}).price(kRing, 8).channels,
      nvlink().channels);
}

TEST(DevicePricing, AScheduleOfItsOwnRunsWithMultiplesOfItsChannels) {
  Candidate own = candidate("ring", Collective::kAllReduce, 4, 3);
  own.routed = std::make_shared<const RoutedSchedule>();
  const DevicePricing pricing(priced_config(), nvlink(), {});
  for (std::size_t bytes = 8; bytes <= std::size_t{1} << 30; bytes *= 8) {
    const int channels = pricing.price(own, bytes).channels;
    EXPECT_EQ(channels % 3, 0) << bytes;
    EXPECT_LE(channels, nvlink().channels);
  }
}

// A slot of a protocol with flags takes all that a round sends over a link.
TEST(DevicePricing, AChunkThatDoesNotFitASlotTakesAnotherProtocol) {
  DeviceLimits tiny = nvlink();
  tiny.slot_bytes = {512 << 10, 8, 0};
  const Candidate dense = candidate("recursive_doubling", Collective::kAllGather, 8);
  ASSERT_GT(dense.shape.link_messages, 1);
  EXPECT_EQ(DevicePricing(priced_config(), tiny, {}).price(dense, 8).protocol, Protocol::kSimple);
}

// Four H200 (benchmarks/results/gpu-four-h200.txt): one hop up to 256 KiB, two for more.
TEST(DevicePricing, FourAddShortDataInOneHop) {
  DeviceLimits limits = nvlink();
  limits.cluster = 4;
  const DevicePricing pricing(priced_config(), limits, {});
  const auto microseconds = [&](const char* algorithm, std::size_t bytes) {
    return pricing.price(candidate(algorithm, Collective::kAllReduce, 4), bytes).predicted_seconds *
           1e6;
  };
  struct Measured {
    std::size_t bytes;
    double one_shot;
    double two_shot;
  };
  for (const auto& [bytes, one_shot, two_shot] :
       {Measured{64 << 10, 4.4, 6.9}, {256 << 10, 6.5, 7.7}, {512 << 10, 10.7, 8.5}}) {
    EXPECT_EQ(microseconds("one_shot", bytes) < microseconds("two_shot", bytes),
              one_shot < two_shot)
        << bytes;
    EXPECT_NEAR(microseconds("one_shot", bytes) / one_shot, 1, 0.2) << bytes;
    EXPECT_NEAR(microseconds("two_shot", bytes) / two_shot, 1, 0.25) << bytes;
  }
  EXPECT_EQ(pricing.price(candidate("one_shot", Collective::kAllReduce, 4), 8).protocol,
            Protocol::kLl);
  EXPECT_EQ(pricing.price(candidate("one_shot", Collective::kAllReduce, 4), 64 << 10).protocol,
            Protocol::kLl128);
}

// A line or a word too many would take each step of a block a second turn.
TEST(DevicePricing, ThreadsTakeAllOfAShareAsLaunchesCutIt) {
  DeviceLimits limits = nvlink();
  const Candidate one_shot = candidate("one_shot", Collective::kAllReduce, 4);
  for (const char* protocol : {"ll", "ll128"}) {
    const std::size_t at_once = protocol == std::string("ll") ? 8 : 15 * 8;
    const unsigned threads_each = protocol == std::string("ll") ? 1 : 8;
    for (int channels = 1; channels <= 64; ++channels) {
      const DevicePricing pricing(
          priced_config({{"PROTOCOL", protocol}, {"CHANNELS", std::to_string(channels).c_str()}}),
          limits, {});
      const std::size_t bytes = 64 << 10;
      const Choice choice = pricing.price(one_shot, bytes);
      if (choice.threads == static_cast<int>(executor::kMaxThreads)) continue;
      const std::size_t share = (bytes / 4 + static_cast<std::size_t>(channels) - 1) /
                                static_cast<std::size_t>(channels) * 4;
      const std::size_t rounded = (share + 127) / 128 * 128;
      EXPECT_GE(static_cast<std::size_t>(choice.threads),
                (rounded + at_once - 1) / at_once * threads_each)
          << protocol << " " << channels;
    }
  }
}

TEST(DevicePricing, MessagesKeepToTheirChannels) {
  const DevicePricing pricing(priced_config(), nvlink(), {});
  EXPECT_EQ(pricing.message(8).channels, 1);
  EXPECT_EQ(pricing.message(std::size_t{1} << 30).channels, nvlink().message_channels);
}

// Two H100: 17 us by ll128 for 4 MiB, 23 by simple, which is sooner from 32 MiB on.
TEST(DevicePricing, MessagesWithinAHostArePricedByTheLinkBetweenTheGpus) {
  DeviceLimits limits = nvlink();
  limits.message_channels = 32;
  const DevicePricing pricing(priced_config(), limits, {});
  for (const std::size_t bytes : {std::size_t{1} << 20, std::size_t{4} << 20}) {
    EXPECT_EQ(pricing.message(bytes).protocol, Protocol::kLl128) << bytes;
  }
  const std::size_t bytes = std::size_t{64} << 20;
  const Choice choice = pricing.message(bytes);
  EXPECT_EQ(choice.protocol, Protocol::kSimple);
  EXPECT_NEAR(choice.predicted_seconds, static_cast<double>(bytes) / DeviceConstants().link_rate,
              2e-5);
}

}  // namespace
}  // namespace ropewalk::tune
