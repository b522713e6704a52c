#include "tune/device_constants.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tune/tuning_store.h"

namespace ropewalk::tune {
namespace {

using executor::kNumProtocols;
using nlohmann::json;

constexpr auto kSimple = static_cast<std::size_t>(executor::Protocol::kSimple);
constexpr auto kLl = static_cast<std::size_t>(executor::Protocol::kLl);

// The model is right within that.
constexpr double kSame = 1.4;
constexpr double kMostScale = 100;

// What the times say of each constant.
struct Derived {
  std::array<double, kNumProtocols> launch{};
  std::array<double, kNumProtocols> hop{};
  std::array<double, kNumProtocols> block{};  // seconds of kBlockBytes
  double link = 0;                            // seconds of kLinkBytes
};

Derived derived(const DeviceTimes& times, int ranks) {
  const double hops = std::max(1, ranks - 1);
  Derived result;
  for (std::size_t p = 0; p < kNumProtocols; ++p) {
    // An all-reduce goes round twice, an all-gather once.
    result.hop[p] = (times.reduce[p] - times.gather[p]) / hops;
    result.launch[p] = times.gather[p] - hops * result.hop[p];
    result.block[p] = (times.block[p] - times.gather[p]) / hops;
  }
  result.link = (times.link - times.gather[kSimple]) / hops;
  return result;
}

double ratio(double here, double base) {
  if (!(here > 0) || !(base > 0)) return 1;
  const double value = here / base;
  if (value < kSame && value > 1 / kSame) return 1;
  return std::clamp(value, 1 / kMostScale, kMostScale);
}

using Row = double (DeviceConstants::*)[kNumProtocols];
constexpr std::array<std::pair<const char*, Row>, 5> kRows = {
    {{"launch_s", &DeviceConstants::launch},
     {"hop_s", &DeviceConstants::hop},
     {"step_s", &DeviceConstants::step},
     {"fan_s", &DeviceConstants::fan},
     {"block_rate_Bps", &DeviceConstants::block_rate}}};
constexpr const char* kLinkRate = "link_rate_Bps";
constexpr const char* kHybridRate = "hybrid_rate_Bps";
constexpr const char* kHybridOneWayRate = "hybrid_one_way_rate_Bps";

}  // namespace

DeviceConstants host_path() {
  DeviceConstants constants;
  constants.launch[kSimple] = 5e-6;
  constants.launch[kLl] = 2.5e-6;
  constants.hop[kSimple] = 7e-6;
  constants.hop[kLl] = 2e-6;
  constants.link_rate = 39e9;
  constants.network_rate = 36e9;
  constants.network_one_way_rate = 50e9;
  constants.network_link_rate = 35e9;
  constants.block_rate[kSimple] = 6.9e9;
  constants.block_rate[kLl] = 1.17e9;
  return constants;
}

DeviceConstants scaled(const DeviceBase& base, const DeviceTimes& times, int ranks) {
  const Derived there = derived(base.times, 2);
  const Derived here = derived(times, ranks);
  DeviceConstants result = base.constants;
  for (std::size_t p = 0; p < kNumProtocols; ++p) {
    if (times.gather[p] == 0) continue;
    const double hop = ratio(here.hop[p], there.hop[p]);
    result.launch[p] *= ratio(here.launch[p], there.launch[p]);
    result.hop[p] *= hop;
    result.step[p] *= hop;
    result.fan[p] *= hop;
    result.block_rate[p] /= ratio(here.block[p], there.block[p]);
  }
  if (times.link > 0) result.link_rate /= ratio(here.link, there.link);
  constexpr auto kBytes = static_cast<double>(DeviceTimes::kLinkBytes);
  if (times.hybrid > times.gather[kSimple]) {
    result.hybrid_rate = std::max(1, ranks - 1) * kBytes / (times.hybrid - times.gather[kSimple]);
  }
  if (times.hybrid_one_way > times.gather[kSimple]) {
    result.hybrid_one_way_rate = kBytes / (times.hybrid_one_way - times.gather[kSimple]);
  }
  return result;
}

std::string describe(const DeviceTimes& times) {
  std::string text;
  for (std::size_t p = 0; p < kNumProtocols; ++p) {
    text += fmt::format("{} {:.3f} {:.3f} {:.3f} us; ",
                        executor::name(static_cast<executor::Protocol>(p)), times.gather[p] * 1e6,
                        times.reduce[p] * 1e6, times.block[p] * 1e6);
  }
  return text + fmt::format("all blocks {:.3f} us; through the host's memory {:.3f} us",
                            times.link * 1e6, times.hybrid * 1e6);
}

json to_json(const DeviceConstants& constants) {
  json entry;
  for (const auto& [key, row] : kRows) {
    for (int p = 0; p < executor::kNumProtocols; ++p) {
      entry[key][executor::name(static_cast<executor::Protocol>(p))] = (constants.*row)[p];
    }
  }
  entry[kLinkRate] = constants.link_rate;
  if (constants.hybrid_rate > 0 && constants.hybrid_one_way_rate > 0) {
    entry[kHybridRate] = constants.hybrid_rate;
    entry[kHybridOneWayRate] = constants.hybrid_one_way_rate;
  }
  return entry;
}

DeviceConstants device_constants_of(const json& entry) {
  DeviceConstants constants;
  for (const auto& [key, row] : kRows) {
    // The times of a protocol that does not run here are none; rates are of what data takes.
    const bool zero_allowed = row != &DeviceConstants::block_rate;
    for (int p = 0; p < executor::kNumProtocols; ++p) {
      (constants.*row)[p] = constant_of(
          entry.at(key), executor::name(static_cast<executor::Protocol>(p)), zero_allowed);
    }
  }
  constants.link_rate = constant_of(entry, kLinkRate);
  if (entry.contains(kHybridRate)) {
    constants.hybrid_rate = constant_of(entry, kHybridRate);
    constants.hybrid_one_way_rate = constant_of(entry, kHybridOneWayRate);
  }
  return constants;
}

std::optional<DeviceConstants> kept_device_constants(const std::string& path,
                                                     const std::string& name) {
  return read_tuning_as(path, name, device_constants_of);
}

// Measured on two H200 that NVLink joins (driver 580); the second with peer access turned off.
DeviceBase device_base(bool peer_access) {
  if (peer_access) {
    return {DeviceConstants{},
            {.gather = {7.29e-6, 2.60e-6, 2.61e-6},
             .reduce = {12.0e-6, 3.80e-6, 3.84e-6},
             .block = {70.7e-6, 24.3e-6, 41.5e-6},
             .link = 60.2e-6}};
  }
  return {host_path(),
          {.gather = {10.6e-6, 4.56e-6, 0},
           .reduce = {18.7e-6, 6.72e-6, 0},
           .block = {131.8e-6, 47.9e-6, 0},
           .link = 508e-6}};
}

}  // namespace ropewalk::tune
