#include "schedule/layout.h"

#include <algorithm>

namespace ropewalk::schedule {
namespace {

std::size_t round_up(std::size_t value, std::size_t granule) {
  return (value + granule - 1) / granule * granule;
}

}  // namespace

int num_units(Collective collective, int num_ranks) noexcept {
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce: return 1;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kSendRecv: return num_ranks;
    case Collective::kAllToAll: return num_ranks * num_ranks;
  }
  return 0;
}

std::optional<int> input_index(Collective collective, int num_ranks, int root, int unit,
                               int rank) noexcept {
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kReduce: return 0;
    case Collective::kBroadcast: return rank == root ? std::optional(0) : std::nullopt;
    case Collective::kReduceScatter: return unit;
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kSendRecv: return unit == rank ? std::optional(0) : std::nullopt;
    case Collective::kScatter: return rank == root ? std::optional(unit) : std::nullopt;
    case Collective::kAllToAll:
      return unit / num_ranks == rank ? std::optional(unit % num_ranks) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<int> output_index(Collective collective, int num_ranks, int root, int unit,
                                int rank) noexcept {
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast: return 0;
    case Collective::kReduce: return rank == root ? std::optional(0) : std::nullopt;
    case Collective::kAllGather: return unit;
    case Collective::kGather: return rank == root ? std::optional(unit) : std::nullopt;
    case Collective::kReduceScatter:
    case Collective::kScatter: return unit == rank ? std::optional(0) : std::nullopt;
    case Collective::kSendRecv:
      return (unit + 1) % num_ranks == rank ? std::optional(0) : std::nullopt;
    case Collective::kAllToAll:
      return unit % num_ranks == rank ? std::optional(unit / num_ranks) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<int> contributor(Collective collective, int num_ranks, int root, int unit) noexcept {
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kReduceScatter:
    case Collective::kReduce: return std::nullopt;
    case Collective::kBroadcast:
    case Collective::kScatter: return root;
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kSendRecv: return unit;
    case Collective::kAllToAll: return unit / num_ranks;
  }
  return std::nullopt;
}

int input_units(Collective collective, int num_ranks, int root, int rank) noexcept {
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kSendRecv: return 1;
    case Collective::kBroadcast: return rank == root ? 1 : 0;
    case Collective::kScatter: return rank == root ? num_ranks : 0;
    case Collective::kReduceScatter:
    case Collective::kAllToAll: return num_ranks;
  }
  return 0;
}

int output_units(Collective collective, int num_ranks, int root, int rank) noexcept {
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduceScatter:
    case Collective::kScatter:
    case Collective::kSendRecv: return 1;
    case Collective::kReduce: return rank == root ? 1 : 0;
    case Collective::kGather: return rank == root ? num_ranks : 0;
    case Collective::kAllGather:
    case Collective::kAllToAll: return num_ranks;
  }
  return 0;
}

std::optional<int> in_place_input_offset(Collective collective, int rank) noexcept {
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce: return 0;
    case Collective::kAllGather:
    case Collective::kGather: return rank;
    case Collective::kReduceScatter:
    case Collective::kScatter: return -rank;
    case Collective::kAllToAll:
    case Collective::kSendRecv: return std::nullopt;
  }
  return std::nullopt;
}

Range channel_range(std::size_t count, const int* weight, int num_channels, int channel,
                    std::size_t granule) noexcept {
  std::size_t total = 0;
  std::size_t before = 0;
  for (int c = 0; c < num_channels; ++c) {
    if (c < channel) before += static_cast<std::size_t>(weight[c]);
    total += static_cast<std::size_t>(weight[c]);
  }
  const std::size_t after = before + static_cast<std::size_t>(weight[channel]);
  // 128-bit, so that count times weight cannot overflow.
  const auto boundary = [&](std::size_t sum) -> std::size_t {
    if (sum == total || total == 0) return count;
    const auto exact =
        static_cast<std::size_t>(static_cast<unsigned __int128>(count) * sum / total);
    return std::min(count, round_up(exact, granule));
  };
  const std::size_t begin = before == 0 ? 0 : boundary(before);
  return {begin, boundary(after) - begin};
}

Range part_range(Range channel, int parts, int part, std::size_t granule) noexcept {
  const auto n = static_cast<std::size_t>(parts);
  const std::size_t length = round_up((channel.count + n - 1) / n, granule);
  const std::size_t begin = std::min(channel.count, length * static_cast<std::size_t>(part));
  const std::size_t end = std::min(channel.count, begin + length);
  return {channel.begin + begin, end - begin};
}

}  // namespace ropewalk::schedule
