#include "comm/found_rails.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "comm/rail_measurement.h"
#include "comm/rank_record.h"
#include "core/digest.h"
#include "core/error.h"
#include "core/log.h"

namespace ropewalk::comm {
namespace {

constexpr double kLeastShare = 1.0 / 32;
constexpr double kBytesPerMegabit = 125e3;

using Rates = std::array<double, kMostRails>;

// Sent as they lie.
struct NicRecord {
  std::int64_t count = 0;
  std::array<link::Nic, kMostRails> nics{};
};
struct RatesRecord {
  std::int64_t known = 0;
  Rates rates{};
};

std::vector<link::Nic> nics_of(const transport::Transport& transport) {
  std::vector<link::Nic> nics;
  const int count = std::min(transport.num_devices(), kMostRails);
  for (int d = 0; d < count; ++d) {
    const transport::DeviceProperties properties = transport.properties(d);
    const std::uint64_t fabric =
        properties.fabric.empty() ? 0 : std::max<std::uint64_t>(1, digest(properties.fabric));
    nics.push_back({fabric, properties.speed_mbps * kBytesPerMegabit});
  }
  return nics;
}

// The distinct lists of NICs: hosts of one kind measure the same.
std::string key_of(std::vector<std::vector<link::Nic>> nics) {
  std::ranges::sort(nics);
  nics.erase(std::unique(nics.begin(), nics.end()), nics.end());
  std::string key;
  for (const std::vector<link::Nic>& of_rank : nics) {
    for (const link::Nic& nic : of_rank) key += fmt::format("{:x} {}, ", nic.fabric, nic.rate);
    key += "; ";
  }
  return key;
}

// Between the hosts that would measure.
Rates stated(const link::Rails& rails, const std::vector<std::vector<link::Nic>>& nics,
             std::span<const int> leaders) {
  Rates rates{};
  for (std::size_t rail = 0; rail < static_cast<std::size_t>(rails.count()); ++rail) {
    rates[rail] = std::numeric_limits<double>::infinity();
    for (std::size_t k = 0; k < leaders.size(); ++k) {
      const int next = leaders[(k + 1) % leaders.size()];
      for (const auto& [rank, peer] : {std::pair(leaders[k], next), std::pair(next, leaders[k])}) {
        const int device = rails.device(rank, peer, static_cast<int>(rail));
        const double rate =
            nics[static_cast<std::size_t>(rank)][static_cast<std::size_t>(device)].rate;
        rates[rail] = std::min(rates[rail], rate);
      }
    }
  }
  return rates;
}

// `name_of` a rail, for the log; none on ranks that tell nothing.
FoundRails fastest_first(const link::Rails& rails, std::span<const double> rates,
                         const std::function<std::string(int)>& name_of) {
  std::vector<int> order(rates.size());
  std::iota(order.begin(), order.end(), 0);
  const auto rate_of = [&](int rail) { return rates[static_cast<std::size_t>(rail)]; };
  std::ranges::stable_sort(order, std::greater(), rate_of);
  const double fastest = rate_of(order.front());
  // None could be measured: the first link that is wanted says why.
  if (!(fastest > 0)) return {rails.reordered(std::array{0}), {}};
  FoundRails found;
  std::vector<int> kept;
  for (const int rail : order) {
    if (rate_of(rail) < kLeastShare * fastest) {
      if (name_of) {
        log::warn("NIC {} of {} is left out: {}", name_of(rail), rates.size(),
                  rate_of(rail) > 0 ? fmt::format("{:.4g} MB/s, the fastest {:.4g}",
                                                  rate_of(rail) / 1e6, fastest / 1e6)
                                    : std::string("over it the next host is not reached"));
      }
      continue;
    }
    kept.push_back(rail);
    found.rates.push_back(rate_of(rail));
  }
  found.rails = rails.reordered(kept);
  if (found.rates.size() == 1) found.rates.clear();
  return found;
}

}  // namespace

FoundRails find_rails(bootstrap::Bootstrap& bootstrap, const Config& config, KnownRates& known,
                      transport::Transport& transport, std::span<const int> host_of_rank, int most,
                      Deadline deadline, const std::function<void()>& waiting) {
  const auto n = static_cast<std::size_t>(bootstrap.size());
  const auto self = static_cast<std::size_t>(bootstrap.rank());
  std::vector<NicRecord> records(n);
  const std::vector<link::Nic> own = nics_of(transport);
  records[self].count = static_cast<std::int32_t>(own.size());
  std::ranges::copy(own, records[self].nics.begin());
  bootstrap.all_gather(std::as_writable_bytes(std::span(records)), sizeof(NicRecord), deadline);
  std::vector<std::vector<link::Nic>> nics;
  for (const NicRecord& record : records) {
    const auto count = std::clamp<std::int64_t>(record.count, 0, kMostRails);
    nics.emplace_back(record.nics.begin(), record.nics.begin() + count);
  }
  const link::Rails rails(nics, host_of_rank, most);
  if (rails.count() == 1) return {rails, {}};
  const auto count = static_cast<std::size_t>(rails.count());
  const bool tells = bootstrap.rank() == 0;
  const std::vector<int> leaders = first_ranks(host_of_rank);
  std::string key;
  // Rank 0 says whether to measure, for all to do the same.
  RatesRecord agreed;
  if (tells && config.text(Setting::kNicRates) == "stated") {
    agreed = {1, stated(rails, nics, leaders)};
  } else if (tells) {
    key = key_of(nics) + fmt::format("{}", count);
    const std::vector<double> before = known.get(key);
    agreed.known = before.size() == count ? 1 : 0;
    std::ranges::copy(before, agreed.rates.begin());
  }
  bootstrap.broadcast(std::as_writable_bytes(std::span(&agreed, 1)), 0, deadline);
  if (agreed.known == 0) {
    std::vector<Rates> all(n);
    const std::vector<double> mine =
        measure_rails(bootstrap, transport, rails, leaders, deadline, waiting);
    std::ranges::copy(mine, all[self].begin());
    bootstrap.all_gather(std::as_writable_bytes(std::span(all)), sizeof(Rates), deadline);
    agreed.rates = all[0];
    for (const int leader : leaders) {
      const Rates& theirs = all[static_cast<std::size_t>(leader)];
      for (std::size_t rail = 0; rail < count; ++rail) {
        agreed.rates[rail] = std::min(agreed.rates[rail], theirs[rail]);
      }
    }
    if (tells) known.keep(key, {agreed.rates.begin(), agreed.rates.begin() + rails.count()});
  }
  std::function<std::string(int)> name_of;
  if (tells) {
    name_of = [&](int rail) {
      return transport.properties(rails.device(0, leaders[1], rail)).name;
    };
  }
  FoundRails found = fastest_first(rails, std::span(agreed.rates).first(count), name_of);
  if (tells) {
    std::string text;
    for (const double rate : found.rates) text += fmt::format(" {:.4g}", rate / 1e6);
    if (!text.empty()) {
      log::info(log::kInit, "{} NICs of each host are used, MB/s:{} ({})", found.rates.size(), text,
                config.text(Setting::kNicRates));
    }
  }
  return found;
}

}  // namespace ropewalk::comm
