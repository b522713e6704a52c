#include "tune/hybrid_links.h"

#include "plan/link_split.h"

namespace ropewalk::tune {
namespace {

// Measured with two. More share what the host's memory carries, and take two windows for each pair.
constexpr int kMostHybridRanks = 2;
constexpr double kLeastHybridShare = 0.03;
// As a share of the rate that links through the host's memory have alone, in both directions. On
// two H200 they carry more, which HybridController finds; on two H100 more made calls much longer.
constexpr double kBesideOthers = 0.8;
constexpr double kUsPerSecond = 1e6;

bool has_hybrid_rates(const DeviceConstants& constants) noexcept {
  return constants.hybrid_rate > 0 && constants.hybrid_one_way_rate > 0;
}

}  // namespace

bool wants_hybrid_links(std::string_view setting, const GpuPlacement& gpus) noexcept {
  if (setting == "off" || gpus.num_ranks < 2 || gpus.num_hosts > 1 || !gpus.all_have_access) {
    return false;
  }
  return setting == "on" || (gpus.num_ranks <= kMostHybridRanks && gpus.most_on_one_gpu == 1);
}

double HybridLinks::host_setup(int hops, bool one_way, std::size_t chunk) const noexcept {
  const double of_all = static_cast<double>(chunk) * channels;
  return hops * (host_hop + of_all / host_rate_of(one_way));
}

double HybridLinks::host_share(int hops, bool one_way, double bytes) const {
  if (host_alone) return 1;
  if (bytes <= 0) return 0;
  const plan::LinkSplit split =
      plan::split_over_classes({{direct_rate / kUsPerSecond, hops * direct_hop * kUsPerSecond},
                                {host_rate_of(one_way) / kUsPerSecond,
                                 host_setup(hops, one_way, chunk_bytes) * kUsPerSecond}},
                               bytes);
  return split.bytes[1] / bytes;
}

HybridLinks hybrid_links(const DeviceConstants& constants, int channels, std::size_t chunk_bytes) {
  const bool known = has_hybrid_rates(constants);
  const DeviceConstants through_host = host_path();
  HybridLinks links;
  links.channels = channels;
  links.direct_rate = constants.link_rate;
  links.direct_hop = constants.hop[static_cast<std::size_t>(executor::Protocol::kSimple)];
  links.host_rate = kBesideOthers * (known ? constants.hybrid_rate : through_host.link_rate);
  links.host_one_way_rate = known ? constants.hybrid_one_way_rate : through_host.link_rate;
  links.host_hop = through_host.hop[static_cast<std::size_t>(executor::Protocol::kSimple)];
  links.chunk_bytes = chunk_bytes;
  return links;
}

bool uses_hybrid_links(std::string_view setting, const DeviceConstants& constants,
                       const HybridLinks& links) noexcept {
  if (setting == "off" || links.channels == 0) return false;
  if (setting == "on") return true;
  return has_hybrid_rates(constants) &&
         links.host_rate >= kLeastHybridShare * (links.host_rate + links.direct_rate);
}

}  // namespace ropewalk::tune
