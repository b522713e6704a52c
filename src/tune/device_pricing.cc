#include "tune/device_pricing.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/log.h"
#include "executor/block/launch.h"
#include "executor/block/posts.h"
#include "plan/chunk_model.h"
#include "tune/hybrid_links.h"

namespace ropewalk::tune {
namespace {

using executor::Protocol;

// A block of its own pays from this much data on: less is there sooner than a second block helps.
constexpr std::size_t kBlockBytes[executor::kNumProtocols] = {
    std::size_t{32} << 10, 2048, std::size_t{64} * 8 * executor::kLineWords};
constexpr int kWarp = 32;
// What fills a link, in clusters.
constexpr int kEnoughChannels = 32;
// Chunks per slot-sized share: a few in flight hide the latency of a hop.
constexpr std::size_t kLeastDeviceChunk = std::size_t{128} << 10;
// What kernels' stores reach of a link's stated rate: 368 of 450 GB/s between two H200.
constexpr double kReachedShare = 0.82;

std::size_t index(Protocol protocol) { return static_cast<std::size_t>(protocol); }

// A message between two ranks, perhaps of two hosts: one hop, read and written once.
ScheduleShape message_shape(bool leaves_host) {
  ScheduleShape shape;
  shape.longest_path = 1;
  shape.link_messages = 1;
  shape.link_units = 1;
  shape.work_units = 2;
  if (!leaves_host) return shape;
  shape.leaving_units = 1;
  shape.leaving_link_units = 1;
  shape.leaving_rank_units = 1;
  return shape;
}

}  // namespace

int whole_clusters(int channels, int most, int cluster) noexcept {
  if (channels < 2 * cluster) return channels;
  const int up = (channels + cluster - 1) / cluster * cluster;
  return up <= most ? up : channels / cluster * cluster;
}

std::vector<Protocol> allowed_protocols(const Config& config,
                                        const std::vector<Protocol>& available) {
  const std::string& given = config.text(Setting::kProtocol);
  for (const Protocol protocol : available) {
    if (given == executor::name(protocol)) return {protocol};
  }
  if (given != "auto") {
    log::warn("setting ROPEWALK_PROTOCOL: these links have no {}; the tuner chooses another one",
              given);
  }
  return available;
}

DevicePricing::DevicePricing(const Config& config, const DeviceLimits& limits,
                             const DeviceConstants& constants)
    : limits_(limits),
      constants_(constants),
      given_channels_(static_cast<int>(config.integer(Setting::kChannels))),
      given_threads_(static_cast<int>(config.integer(Setting::kDeviceThreads))) {
  std::vector<Protocol> available;
  for (const Protocol protocol : {Protocol::kLl, Protocol::kLl128, Protocol::kSimple}) {
    if (limits.slot_bytes[index(protocol)] > 0) available.push_back(protocol);
  }
  protocols_ = allowed_protocols(config, available);
}

double DevicePricing::block_rate(Protocol protocol) const {
  const double rate = constants_.block_rate[index(protocol)];
  if (protocol != Protocol::kSimple || limits_.cluster < 2) return rate;
  // What was measured here, by one block, is the same part of the built-in one.
  return rate * constants_.cluster_block_rate / DeviceConstants().block_rate[0];
}

double DevicePricing::block_seconds(const ScheduleShape& shape, Protocol protocol) const {
  if (shape.host_path_units == 0) return shape.work_units / block_rate(protocol);
  const double slow = std::min(1.0, shape.host_path_units / std::max(shape.link_units, 1e-9));
  return shape.work_units * (slow / host_path_.block_rate[index(protocol)] +
                             (1 - slow) / constants_.block_rate[index(protocol)]);
}

// On four H100 (docs/gpu.md) half as many blocks are as fast, or faster, where this holds.
int DevicePricing::enough_channels(const ScheduleShape& shape, double seconds_per_byte,
                                   std::size_t unit_bytes, int channels) const {
  constexpr double kEnough = 0.7;
  constexpr double kChunks = 4;
  const int half = channels / 2 / limits_.cluster * limits_.cluster;
  if (limits_.cluster < 2 || half < kEnoughChannels || shape.host_path_units > 0) return channels;
  const double working = block_seconds(shape, Protocol::kSimple) / half;
  const double moved = std::max(shape.link_units, 1.0) * static_cast<double>(unit_bytes) / half;
  const bool is_long =
      moved >= kChunks * static_cast<double>(limits_.slot_bytes[index(Protocol::kSimple)]);
  return is_long && working <= kEnough * seconds_per_byte ? half : channels;
}

DevicePricing::Seconds DevicePricing::on_busiest_rank(const ScheduleShape& shape) const {
  const double share = constants_.spread[std::clamp(shape.fan - 1, 0, 2)];
  Seconds seconds;
  seconds.within = std::max(shape.link_units, 1.0) / (constants_.link_rate * share);
  if (shape.leaving_units == 0) return seconds;
  const DeviceConstants& far = limits_.network ? constants_ : host_path_;
  const double rate = shape.rooted ? far.network_one_way_rate : far.network_rate;
  const double leaving =
      std::max(shape.leaving_units / rate, shape.leaving_link_units / far.network_link_rate);
  if (limits_.network) {
    seconds.leaving = leaving;
  } else {  // by kernels, as within a host
    seconds.within = std::max(seconds.within, leaving);
  }
  return seconds;
}

double DevicePricing::hops_seconds(const ScheduleShape& shape, Protocol protocol) const {
  const std::size_t p = index(protocol);
  const int slow = slow_hops(shape);
  const double slow_hop = limits_.network ? constants_.network_hop[p] : host_path_.hop[p];
  double seconds = slow * slow_hop + (shape.longest_path - slow) * constants_.hop[p];
  if (!limits_.network) return seconds;
  // A thread sends and receives for its rank, a message after the other; the first is in the hop.
  int messages = 0;
  for (const RankLoad& load : shape.loads) {
    const int out = load.messages_out - load.local_out;
    const int in =
        load.combined_in + load.copied_in - load.local_combined_in - load.local_copied_in;
    messages = std::max(messages, (out + in) / shape.channels);
  }
  return seconds + constants_.network_message * std::max(0, messages - 1);
}

double DevicePricing::steps_seconds(const ScheduleShape& shape, Protocol protocol,
                                    int channels) const {
  const std::size_t p = index(protocol);
  // A hop is a step; so is what the first rank of the path sends.
  const int further = std::max(0, shape.steps - 1 - shape.longest_path);
  const DeviceConstants& constants = constants_of(shape);
  const double units = channels > 1 ? std::max(0.0, shape.link_units - 1) : 0;
  return std::max(further * constants.step[p], units * constants.fan[p]);
}

double DevicePricing::filling(const ScheduleShape& shape, double slowest, double fill) const {
  const int slow = slow_hops(shape);
  if (slow == 0) return fill * std::max(0, shape.longest_path - 1);
  const double within = std::max(shape.link_units, 1.0) / constants_.link_rate;
  const double part = slowest > 0 ? std::min(1.0, within / slowest) : 1;
  return fill * (slow - 1) + std::min(fill, 1.0) * (shape.longest_path - slow) * part;
}

Choice DevicePricing::by_protocol(const ScheduleShape& shape, Seconds per_byte, Protocol protocol,
                                  std::size_t unit_bytes, Channels channels) const {
  const std::size_t p = index(protocol);
  const std::size_t slot_bytes =
      shape.host_path_units > 0 ? limits_.host_path_slot_bytes[p] : limits_.slot_bytes[p];
  const DeviceConstants& constants = constants_of(shape);
  Choice choice;
  choice.protocol = protocol;
  const double moved = std::max(shape.link_units, 1.0) * static_cast<double>(unit_bytes);
  // One thread moves what goes by ll over a network, channel by channel: each is a message.
  const bool one_thread = limits_.network && protocol == Protocol::kLl;
  const std::size_t block_bytes = one_thread ? slot_bytes : kBlockBytes[p];
  choice.channels =
      std::clamp(static_cast<int>(
                     std::ceil(moved / static_cast<double>(std::max<std::size_t>(1, block_bytes)))),
                 1, channels.most);
  choice.channels = std::max(choice.channels, std::min(limits_.least_channels, channels.most));
  choice.channels = whole_clusters(choice.channels, channels.most, limits_.cluster);
  if (protocol == Protocol::kSimple) {
    choice.channels = std::max(enough_channels(shape, std::max(per_byte.within, per_byte.leaving),
                                               unit_bytes, choice.channels),
                               std::min(limits_.least_channels, channels.most));
  }
  if (given_channels_ > 0) choice.channels = std::min(given_channels_, channels.most);
  choice.channels = std::min((choice.channels + channels.multiple - 1) / channels.multiple,
                             std::max(1, channels.most / channels.multiple)) *
                    channels.multiple;
  // A channel's share of each part, as launches cut it.
  const std::size_t share =
      executor::whole_share(std::max<std::size_t>(1, unit_bytes),
                            static_cast<std::size_t>(choice.channels), executor::kShareGranule);
  const std::size_t part =
      executor::whole_share(share, static_cast<std::size_t>(shape.parts), executor::kShareGranule);
  if (protocol == Protocol::kSimple) {
    choice.threads = static_cast<int>(executor::kMaxThreads);
    choice.chunk_bytes = std::clamp(part / 4, std::min(kLeastDeviceChunk, slot_bytes), slot_bytes);
  } else {
    // A thread for each word, or eight for each line of ll128: all words of a step at once.
    constexpr std::size_t kLine = std::size_t{8} * executor::kLineWords;
    const std::size_t threads =
        protocol == Protocol::kLl ? (part + 7) / 8 : (part + kLine - 1) / kLine * 8;
    choice.threads = std::clamp(static_cast<int>((threads + kWarp - 1) / kWarp) * kWarp, 2 * kWarp,
                                static_cast<int>(executor::kMaxThreads));
    // A slot takes all that a round sends over a link.
    const std::size_t whole = protocol == Protocol::kLl ? 8 : 8 * executor::kLineWords;
    const bool too_many =
        limits_.network && shape.link_messages > static_cast<int>(executor::kMostPosts);
    choice.chunk_bytes =
        too_many ? 0 : slot_bytes / static_cast<std::size_t>(shape.link_messages) / whole * whole;
  }
  if (given_threads_ > 0) choice.threads = std::max(kWarp, given_threads_ / kWarp * kWarp);
  choice.predicted_seconds = std::numeric_limits<double>::infinity();
  if (choice.chunk_bytes == 0) return choice;
  const double flags[executor::kNumProtocols] = {1, 2, 16.0 / 15};
  if (limits_.network && protocol == Protocol::kLl) {
    per_byte.leaving =
        std::max(per_byte.leaving, shape.leaving_rank_units / constants_.network_ll_rate);
  }
  const double slowest = std::max({per_byte.within * flags[p], per_byte.leaving,
                                   block_seconds(shape, protocol) / choice.channels});
  const double moving = static_cast<double>(unit_bytes) * slowest;
  const double chunks =
      std::ceil(static_cast<double>(part) / static_cast<double>(choice.chunk_bytes));
  const double period = moving / chunks;
  double fill = chunks > 1 ? constants.fill : 0;
  if (protocol == Protocol::kSimple) fill = shape.rooted ? constants.rooted_fill : 0;
  const double filled = 1 + filling(shape, slowest, fill);
  choice.predicted_seconds = constants.launch[p] + hops_seconds(shape, protocol) +
                             steps_seconds(shape, protocol, choice.channels) +
                             plan::pipelined_seconds(filled * period, chunks, period);
  return choice;
}

Choice DevicePricing::best(const ScheduleShape& shape, Seconds per_byte, std::size_t unit_bytes,
                           Channels channels) const {
  Choice best;
  best.predicted_seconds = std::numeric_limits<double>::infinity();
  per_byte.within = std::max(per_byte.within, shape.host_path_units / host_path_.link_rate);
  const auto take = [&](Protocol protocol) {
    Choice choice = by_protocol(shape, per_byte, protocol, unit_bytes, channels);
    if (choice.predicted_seconds < best.predicted_seconds) best = std::move(choice);
  };
  for (const Protocol protocol : protocols_) take(protocol);
  // The setting PROTOCOL names one that links through the host's memory do not have.
  if (best.chunk_bytes == 0 && shape.host_path_units > 0) take(Protocol::kSimple);
  return best;
}

// Blink, section 4.3 (hybrid trees): either class of links moves its share, the slower to set up
// begins later, and the call ends with the later of the two.
Choice DevicePricing::hybrid(const Candidate& candidate, std::size_t unit_bytes) const {
  const ScheduleShape& shape = candidate.shape;
  const int channels = candidate.routed->checked->schedule().num_channels();
  const double share = candidate.routed->hybrid_share;
  const double units = candidate.routed->hybrid_units;
  Choice choice = by_protocol(shape, {units * (1 - share) / constants_.link_rate, 0},
                              Protocol::kSimple, unit_bytes, {channels, channels});
  choice.chunk_bytes = std::min(choice.chunk_bytes, limits_.hybrid_slot_bytes);
  HybridLinks links =
      hybrid_links(constants_, candidate.routed->hybrid_channels, choice.chunk_bytes);
  links.host_scale = candidate.routed->hybrid_scale;
  const double by_host =
      constants_.launch[0] +
      links.host_setup(shape.longest_path, shape.rooted, choice.chunk_bytes) +
      static_cast<double>(unit_bytes) * units * share / links.host_rate_of(shape.rooted);
  choice.predicted_seconds = std::max(choice.predicted_seconds, by_host);
  choice.algorithm = candidate.algorithm;
  choice.routed = candidate.routed;
  return choice;
}

Choice DevicePricing::price(const Candidate& candidate, std::size_t unit_bytes) const {
  if (hybrid_channels_of(candidate.routed) > 0) return hybrid(candidate, unit_bytes);
  const int multiple = candidate.routed == nullptr ? 1 : candidate.shape.channels;
  const Seconds per_byte = candidate.cost == nullptr
                               ? on_busiest_rank(candidate.shape)
                               : Seconds{candidate.cost->seconds_per_byte() / kReachedShare, 0};
  Choice choice = best(candidate.shape, per_byte, unit_bytes, {limits_.channels, multiple});
  if (candidate.cost != nullptr) {
    choice.algbw_gbps = candidate.cost->algbw();
    choice.limiting_links = candidate.cost->limiting_links();
  }
  choice.algorithm = candidate.algorithm;
  choice.routed = candidate.routed;
  return choice;
}

double DevicePricing::least(const Candidate& /*candidate*/, std::size_t /*unit_bytes*/) const {
  return 0;  // price() takes no time
}

Choice DevicePricing::message_by_host_path(std::size_t bytes) const {
  ScheduleShape shape = message_shape(true);
  shape.host_path_units = 1;
  Choice choice = best(shape, on_busiest_rank(shape), bytes, {limits_.message_channels, 1});
  choice.algorithm = "message";
  return choice;
}

Choice DevicePricing::message(std::size_t bytes) const {
  const ScheduleShape shape = message_shape(limits_.network);
  Choice choice = best(shape, on_busiest_rank(shape), bytes, {limits_.message_channels, 1});
  choice.algorithm = "message";
  return choice;
}

}  // namespace ropewalk::tune
