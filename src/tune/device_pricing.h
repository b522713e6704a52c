// Candidates over links between GPUs: with which protocol, how many blocks, and which chunk.
//
// A cost model in the manner of cost_model.h: a launch, a latency for every hop, and then whatever
// takes longer: the bytes that the busiest rank sends or receives, at the rate of its link, or all
// that it reads and writes, at the rate of its blocks. Where the machine is known, its busiest link
// (machine_cost.h) replaces the busiest rank's: a GPU may have several.
//
// Where some pairs of GPUs are linked through host memory, a schedule that uses such a link is
// priced with that link class's constants, and its transfers over those links at their rate if that
// is longer. A step of a block waits for its slowest link, so one such link is enough.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/settings.h"
#include "executor/block/links.h"
#include "tune/device_constants.h"
#include "tune/pricing.h"

namespace ropewalk::tune {

/// What the GPUs of a communicator have room for.
struct DeviceLimits {
  int channels = 32;            ///< of a collective
  int least_channels = 0;       ///< of a collective, where its data allows
  int message_channels = 16;    ///< of a message to one peer
  int cluster = 1;              ///< blocks that a GPU places together: channels are a multiple
  std::uint32_t lag_slots = 4;  ///< chunks that a link of protocol simple holds
  bool network = false;         ///< some links are to other hosts
  /// Of a slot, by protocol; 0 where links do not have the protocol.
  std::array<std::size_t, executor::kNumProtocols> slot_bytes{};
  int hybrid_channels = 0;  ///< GroupFacts'
  std::size_t hybrid_slot_bytes = 0;
  /// The same of the links of GroupFacts::host_path_pairs.
  std::array<std::size_t, executor::kNumProtocols> host_path_slot_bytes{};
};

/// As many channels, or a few more or less, that make up clusters of so many. From two clusters on:
/// fewer blocks are placed one by one.
int whole_clusters(int channels, int most, int cluster) noexcept;

/// The protocols that the setting PROTOCOL leaves of `available`. One that links do not have is
/// passed over, with a warning. Never empty, unless `available` is.
std::vector<executor::Protocol> allowed_protocols(const Config& config,
                                                  const std::vector<executor::Protocol>& available);

class DevicePricing final : public Pricing {
 public:
  DevicePricing(const Config& config, const DeviceLimits& limits, const DeviceConstants& constants);

  /// The registry's schedules may have any number of channels, others multiples of their own.
  [[nodiscard]] Choice price(const Candidate& candidate, std::size_t unit_bytes) const override;
  [[nodiscard]] double least(const Candidate& candidate, std::size_t unit_bytes) const override;
  [[nodiscard]] Choice message(std::size_t bytes) const override;
  /// Between two ranks of GroupFacts::host_path_pairs.
  [[nodiscard]] Choice message_by_host_path(std::size_t bytes) const;
  [[nodiscard]] bool shared_by_sizes() const noexcept override { return false; }

 private:
  // How many channels there may be, and what their number is a multiple of.
  struct Channels {
    int most = 1;
    int multiple = 1;
  };
  // `seconds_per_byte`: of a unit, on the busiest link.
  [[nodiscard]] Choice by_protocol(const ScheduleShape& shape, double seconds_per_byte,
                                   executor::Protocol protocol, std::size_t unit_bytes,
                                   Channels channels) const;
  [[nodiscard]] Choice best(const ScheduleShape& shape, double seconds_per_byte,
                            std::size_t unit_bytes, Channels channels) const;
  // Of a block, reading and writing.
  [[nodiscard]] double block_rate(const ScheduleShape& shape, executor::Protocol protocol) const;
  // Fewer channels where links are the limit all the same, so that the other multiprocessors are
  // free.
  [[nodiscard]] int enough_channels(const ScheduleShape& shape, double seconds_per_byte,
                                    std::size_t unit_bytes, int channels) const;
  // Over both classes of links at once.
  [[nodiscard]] Choice hybrid(const Candidate& candidate, std::size_t unit_bytes) const;
  [[nodiscard]] double on_busiest_rank(const ScheduleShape& shape) const {
    const double leaving = limits_.network ? shape.leaving_units / constants_.network_rate : 0;
    const double share = constants_.spread[std::clamp(shape.fan - 1, 0, 2)];
    return std::max(std::max(shape.link_units, 1.0) / (constants_.link_rate * share), leaving);
  }
  // Of what runs on links through the host's memory, or on no such.
  [[nodiscard]] const DeviceConstants& constants_of(const ScheduleShape& shape) const {
    return shape.host_path_units > 0 ? host_path_ : constants_;
  }

  DeviceLimits limits_;
  DeviceConstants constants_;
  DeviceConstants host_path_ = host_path();
  std::vector<executor::Protocol> protocols_;  // that may be chosen
  int given_channels_ = 0;                     // 0: free
  int given_threads_ = 0;
};

}  // namespace ropewalk::tune
