#include "tune/device_pricing.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "executor/block/launch.h"
#include "schedule/checked.h"

namespace ropewalk::tune {
namespace {

using executor::Protocol;

Config config_with(const std::vector<std::pair<const char*, const char*>>& settings = {}) {
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
  return {algorithm, channels, ScheduleShape::of(*checked), nullptr, nullptr};
}

const Candidate kRing = candidate("ring", Collective::kAllReduce, 4);

TEST(AllowedProtocols, TheNamedOneWhereLinksHaveIt) {
  const std::vector<Protocol> all = {Protocol::kLl, Protocol::kLl128, Protocol::kSimple};
  EXPECT_EQ(allowed_protocols(config_with(), all), all);
  EXPECT_EQ(allowed_protocols(config_with({{"PROTOCOL", "ll"}}), all),
            std::vector<Protocol>{Protocol::kLl});
  const std::vector<Protocol> simple = {Protocol::kSimple};
  EXPECT_EQ(allowed_protocols(config_with({{"PROTOCOL", "ll128"}}), simple), simple);
}

TEST(DevicePricing, ShortCallsCarryFlagsAndLongOnesFillTheLink) {
  const DevicePricing pricing(config_with(), nvlink(), {});
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

TEST(DevicePricing, PredictsNoLessForMore) {
  const DevicePricing pricing(config_with(), nvlink(), {});
  double before = 0;
  for (std::size_t bytes = 8; bytes <= std::size_t{1} << 30; bytes *= 8) {
    const Choice choice = pricing.price(kRing, bytes);
    EXPECT_GE(choice.predicted_seconds, before) << bytes;
    EXPECT_LE(choice.chunk_bytes, nvlink().slot_bytes[static_cast<std::size_t>(choice.protocol)]);
    before = choice.predicted_seconds;
  }
}

TEST(DevicePricing, SettingsGiveChannelsAndThreads) {
  const Config config = config_with({{"CHANNELS", "5"}, {"DEVICE_THREADS", "100"}});
  const Choice choice = DevicePricing(config, nvlink(), {}).price(kRing, 8);
  EXPECT_EQ(choice.channels, 5);
  EXPECT_EQ(choice.threads, 96);  // whole warps
  EXPECT_EQ(DevicePricing(config_with({{"CHANNELS", "99"}}), nvlink(), {}).price(kRing, 8).channels,
            nvlink().channels);
}

TEST(DevicePricing, AScheduleOfItsOwnRunsWithMultiplesOfItsChannels) {
  Candidate own = candidate("ring", Collective::kAllReduce, 4, 3);
  own.routed = std::make_shared<const RoutedSchedule>();
  const DevicePricing pricing(config_with(), nvlink(), {});
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
  EXPECT_EQ(DevicePricing(config_with(), tiny, {}).price(dense, 8).protocol, Protocol::kSimple);
}

TEST(DevicePricing, MessagesKeepToTheirChannels) {
  const DevicePricing pricing(config_with(), nvlink(), {});
  EXPECT_EQ(pricing.message(8).channels, 1);
  EXPECT_EQ(pricing.message(std::size_t{1} << 30).channels, nvlink().message_channels);
}

}  // namespace
}  // namespace ropewalk::tune
