#include "tune/device_constants.h"

#include <gtest/gtest.h>

#include <string>

namespace ropewalk::tune {
namespace {

using executor::kNumProtocols;

TEST(DeviceConstantsOf, TheBaseItselfChangesNothing) {
  for (const bool peer_access : {true, false}) {
    const DeviceBase base = device_base(peer_access);
    EXPECT_EQ(to_json(scaled(base, base.times, 2)), to_json(base.constants));
  }
}

TEST(DeviceConstantsOf, SmallDifferencesAreTheModelsOwn) {
  const DeviceBase base = device_base(true);
  DeviceTimes times = base.times;
  for (double& time : times.block) time *= 1.3;
  times.link *= 0.8;
  EXPECT_EQ(to_json(scaled(base, times, 2)), to_json(base.constants));
}

// Such as a bridge instead of NVLink: data moves at a twentieth of the rate, and launches do not
// change.
TEST(DeviceConstantsOf, ASlowLinkIsSeen) {
  const DeviceBase base = device_base(true);
  DeviceTimes times = base.times;
  times.link = times.gather[0] + 20 * (base.times.link - base.times.gather[0]);
  const DeviceConstants found = scaled(base, times, 2);
  EXPECT_NEAR(found.link_rate, base.constants.link_rate / 20, 1e6);
  EXPECT_EQ(found.launch[0], base.constants.launch[0]);
  EXPECT_EQ(found.block_rate[0], base.constants.block_rate[0]);
}

TEST(DeviceConstantsOf, LatencyIsTheTimeThatASecondRoundAdds) {
  const DeviceBase base = device_base(true);
  DeviceTimes times = base.times;
  for (std::size_t p = 0; p < kNumProtocols; ++p) {
    const double hop = base.times.reduce[p] - base.times.gather[p];
    times.gather[p] += 2 * hop;
    times.reduce[p] += 4 * hop;
    times.block[p] += 2 * hop;
  }
  times.link += 2 * (base.times.reduce[0] - base.times.gather[0]);
  const DeviceConstants found = scaled(base, times, 2);
  for (std::size_t p = 0; p < kNumProtocols; ++p) {
    EXPECT_NEAR(found.hop[p], 3 * base.constants.hop[p], 1e-12);
    EXPECT_NEAR(found.step[p], 3 * base.constants.step[p], 1e-12);
    EXPECT_NEAR(found.fan[p], 3 * base.constants.fan[p], 1e-12);
    EXPECT_EQ(found.launch[p], base.constants.launch[p]);
    EXPECT_EQ(found.block_rate[p], base.constants.block_rate[p]);
  }
}

// Round a ring of five, every time but a launch is four times as long.
TEST(DeviceConstantsOf, MoreRanksAreNotASlowerMachine) {
  const DeviceBase base = device_base(true);
  DeviceTimes times;
  const auto longer = [](double whole, double launch) { return launch + 4 * (whole - launch); };
  for (std::size_t p = 0; p < kNumProtocols; ++p) {
    const double launch = 2 * base.times.gather[p] - base.times.reduce[p];
    times.gather[p] = longer(base.times.gather[p], launch);
    times.reduce[p] = longer(base.times.reduce[p], launch);
    times.block[p] = longer(base.times.block[p], launch);
  }
  times.link = longer(base.times.link, 2 * base.times.gather[0] - base.times.reduce[0]);
  EXPECT_EQ(to_json(scaled(base, times, 5)), to_json(base.constants));
}

TEST(DeviceConstantsOf, MissingAndInvalidMeasurementsChangeNothing) {
  const DeviceBase base = device_base(true);
  EXPECT_EQ(to_json(scaled(base, DeviceTimes{}, 2)), to_json(base.constants));
  DeviceTimes backwards = base.times;
  std::swap(backwards.gather, backwards.reduce);
  const DeviceConstants found = scaled(base, backwards, 2);
  for (std::size_t p = 0; p < kNumProtocols; ++p) EXPECT_EQ(found.hop[p], base.constants.hop[p]);
}

TEST(DeviceConstantsOf, AreKeptAsJson) {
  DeviceConstants constants = host_path();
  constants.hop[2] = 1.25e-6;
  EXPECT_EQ(to_json(device_constants_of(to_json(constants))), to_json(constants));
  for (const char* wrong : {R"({})", R"([])", R"("x")"}) {
    EXPECT_THROW((void)device_constants_of(nlohmann::json::parse(wrong)), std::exception) << wrong;
  }
  for (const char* key : {"link_rate_Bps", "hop_s", "block_rate_Bps"}) {
    nlohmann::json broken = to_json(constants);
    broken[key] = "fast";
    EXPECT_THROW((void)device_constants_of(broken), std::exception) << key;
    broken.erase(key);
    EXPECT_THROW((void)device_constants_of(broken), std::exception) << key;
  }
  nlohmann::json zero = to_json(constants);
  zero["link_rate_Bps"] = 0;
  EXPECT_THROW((void)device_constants_of(zero), std::exception);
  zero = to_json(constants);
  zero["block_rate_Bps"]["ll"] = -1;
  EXPECT_THROW((void)device_constants_of(zero), std::exception);
}

}  // namespace
}  // namespace ropewalk::tune
