// Candidates over links between GPUs: with which protocol, how many blocks, and which chunk.
//
// A cost model in the manner of cost_model.h: a launch, a latency for every hop, and then whatever
// takes longer: the bytes that the busiest rank sends or receives, at the rate of its link, or all
// that it reads and writes, at the rate of its blocks. Where the machine is known, its busiest link
// (machine_cost.h) replaces the busiest rank's: a GPU may have several.
//
// Where some pairs of GPUs are linked through host memory, hops over such links have that class's
// latency, and the share of the work that goes over them its rate of blocks; the transfers take as
// long as on the slower class. Between hosts, also what leaves a host in all is a limit: the
// network's, or of the memory or adapter that the hosts share.
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
  int cluster = 1;              ///< blocks that a GPU schedules together: channels are a multiple
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
  // Of a byte of a unit: on the busiest link that kernels write, and out of the host that sends
  // most over a network, where data travels without the flags of its protocol.
  struct Seconds {
    double within = 0;
    double leaving = 0;
  };
  [[nodiscard]] Choice by_protocol(const ScheduleShape& shape, Seconds per_byte,
                                   executor::Protocol protocol, std::size_t unit_bytes,
                                   Channels channels) const;
  [[nodiscard]] Choice best(const ScheduleShape& shape, Seconds per_byte, std::size_t unit_bytes,
                            Channels channels) const;
  // Of all hops of the longest path.
  [[nodiscard]] double hops_seconds(const ScheduleShape& shape, executor::Protocol protocol) const;
  // Of the steps beside those, by so many blocks.
  [[nodiscard]] double steps_seconds(const ScheduleShape& shape, executor::Protocol protocol,
                                     int channels) const;
  // How much longer than on the slowest link (`slowest`, seconds per byte) a first chunk takes over
  // all hops, as a factor less 1; `fill` is of the slowest links.
  [[nodiscard]] double filling(const ScheduleShape& shape, double slowest, double fill) const;
  // Of a block, reading and writing memory of GPUs.
  [[nodiscard]] double block_rate(executor::Protocol protocol) const;
  // Of a byte of a unit, all that one block of the busiest rank reads and writes.
  [[nodiscard]] double block_seconds(const ScheduleShape& shape, executor::Protocol protocol) const;
  // Fewer channels where links are the limit all the same, so that the other multiprocessors are
  // free.
  [[nodiscard]] int enough_channels(const ScheduleShape& shape, double seconds_per_byte,
                                    std::size_t unit_bytes, int channels) const;
  // Over both classes of links at once.
  [[nodiscard]] Choice hybrid(const Candidate& candidate, std::size_t unit_bytes) const;
  [[nodiscard]] Seconds on_busiest_rank(const ScheduleShape& shape) const;
  // Hops between hosts, or between other ranks that host memory links.
  [[nodiscard]] int slow_hops(const ScheduleShape& shape) const {
    const bool some = limits_.network || shape.host_path_units > 0;
    return some ? shape.longest_path - shape.local_path : 0;
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
