#include "executor/block/channel_cut.h"

#include <algorithm>

#include "executor/block/launch.h"
#include "schedule/layout.h"

namespace ropewalk::executor {

std::size_t ChannelCut::elements(int channel, int part) const noexcept {
  const auto c = static_cast<std::size_t>(channel);
  const std::size_t begin = begins.empty() ? share * c : begins[2 * c];
  const std::size_t end = begins.empty() ? std::min(count, begin + share) : begins[2 * c + 2];
  const std::size_t length = begins.empty() ? part_length : begins[2 * c + 1];
  const std::size_t from = begin + length * static_cast<std::size_t>(part);
  return from >= end ? 0 : std::min(length, end - from);
}

ChannelCut cut_channels(const schedule::Schedule& schedule, std::size_t count,
                        std::size_t granule) {
  const int channels = schedule.num_channels();
  const auto parts = static_cast<std::size_t>(schedule.parts);
  const bool even = std::ranges::all_of(
      schedule.weight, [&](int weight) { return weight == schedule.weight.front(); });
  ChannelCut cut;
  cut.count = count;
  if (even) {
    cut.share = whole_share(count, static_cast<std::size_t>(channels), granule);
  } else {
    for (int c = 0; c < channels; ++c) {
      const schedule::Range range =
          schedule::channel_range(count, schedule.weight.data(), channels, c, granule);
      cut.begins.push_back(range.begin);
      cut.begins.push_back(whole_share(range.count, parts, granule));
      cut.share = std::max(cut.share, range.count);
    }
    cut.begins.push_back(count);
  }
  cut.part_length = whole_share(cut.share, parts, granule);
  return cut;
}

}  // namespace ropewalk::executor
