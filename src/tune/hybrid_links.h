// Links through the host's memory beside those between GPUs' memories: where both may carry one
// operation, and which share of its data each does (setting HYBRID).
#pragma once

#include <cstddef>
#include <string_view>

#include "tune/device_constants.h"

namespace ropewalk::tune {

/// The GPUs of a communicator.
struct GpuPlacement {
  int num_ranks = 1;
  int num_hosts = 1;
  int most_on_one_gpu = 1;      ///< ranks
  bool all_have_access = true;  ///< every pair, to each other's memory
};

/// Whether links through the host's memory are to exist beside the others. Alike on all ranks.
/// @param setting HYBRID: "auto", "on" or "off"
bool wants_hybrid_links(std::string_view setting, const GpuPlacement& gpus) noexcept;

/// Both classes of links, as GroupFacts has them. Seconds, bytes per second.
struct HybridLinks {
  /// How many of the communicator's channels may go through the host's memory; 0: none.
  int channels = 0;
  /// All data goes that way: to measure it.
  bool host_alone = false;
  double direct_rate = 0;        ///< of the links between GPUs' memories
  double direct_hop = 0;         ///< what each hop takes before data flows
  double host_rate = 0;          ///< while both directions and the direct links are busy
  double host_one_way_rate = 0;  ///< while the other direction is free
  double host_hop = 0;
  std::size_t chunk_bytes = 0;  ///< of one channel through the host's memory
  double host_scale = 1;        ///< host_rate is so many times as high (hybrid_controller.h)

  [[nodiscard]] double host_rate_of(bool one_way) const noexcept {
    return one_way ? host_one_way_rate : host_rate * host_scale;
  }
  /// Before all `hops` of a path through the host's memory carry data: each waits for a chunk of
  /// every channel.
  [[nodiscard]] double host_setup(int hops, bool one_way, std::size_t chunk) const noexcept;
  /// The share of `bytes`, those of the busiest link, that the host's links carry so that both
  /// classes end together (plan/link_split.h: Blink, equation 8); 0: they would end before the
  /// host's links have begun.
  [[nodiscard]] double host_share(int hops, bool one_way, double bytes) const;
};

/// The links by their measured rates; by built-in ones of the host's where these were not measured.
/// @param channels, chunk_bytes what the host's links have room for
HybridLinks hybrid_links(const DeviceConstants& constants, int channels, std::size_t chunk_bytes);

/// Whether they are to be used: "on", always where there are any; "auto", where the rates were
/// measured and the host's links carry enough to gain anything.
bool uses_hybrid_links(std::string_view setting, const DeviceConstants& constants,
                       const HybridLinks& links) noexcept;

}  // namespace ropewalk::tune
