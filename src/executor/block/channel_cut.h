// Which elements of a unit each channel of a launch has, and each part of a channel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace ropewalk::executor {

/// As LaunchArgs has them.
struct ChannelCut {
  std::size_t count = 0;  ///< of the unit
  std::size_t share = 0;  ///< of the channel that has most
  std::size_t part_length = 0;
  std::vector<std::uint64_t> begins;  ///< empty where all channels have as much

  /// Elements of a channel's part; the last ones may have fewer than others, or none.
  [[nodiscard]] std::size_t elements(int channel, int part) const noexcept;
};

/// By the channels' weights, at multiples of `granule`.
ChannelCut cut_channels(const schedule::Schedule& schedule, std::size_t count, std::size_t granule);

}  // namespace ropewalk::executor
