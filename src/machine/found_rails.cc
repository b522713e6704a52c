#include "machine/found_rails.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "core/digest.h"
#include "core/error.h"
#include "core/log.h"
#include "machine/nic_places.h"
#include "machine/rail_measurement.h"
#include "tune/processors.h"
#include "tune/rail_weights.h"

namespace ropewalk::machine {
namespace {

constexpr double kLeastShare = 1.0 / 32;
constexpr double kBytesPerMegabit = 125e3;

using RailRates = std::array<double, kMostRails>;

// Sent as they lie.
struct NicRecord {
  link::Nic nic;
  link::NicPosition position;
};
struct RatesRecord {
  std::int64_t known = 0;
  RailRates rates{};
  double sharing_cost = 0;
};

link::Nic nic_of(const transport::DeviceProperties& device) {
  const auto number = [](const std::string& text) {
    return text.empty() ? 0 : std::max<std::uint64_t>(1, digest(text));
  };
  return {number(device.fabric), device.speed_mbps * kBytesPerMegabit, number(device.address)};
}

// Every rank's, in the order of its devices; a NIC without rate is none.
struct AllNics {
  std::vector<std::vector<link::Nic>> nics;
  std::vector<std::vector<link::NicPosition>> positions;
};

// Nothing where each rank has one, unless it is wanted too.
AllNics exchange(bootstrap::Bootstrap& bootstrap, const std::vector<NicRecord>& own, bool one_too,
                 Deadline deadline) {
  const auto n = static_cast<std::size_t>(bootstrap.size());
  const auto self = static_cast<std::size_t>(bootstrap.rank());
  std::vector<std::int64_t> counts(n);
  counts[self] = static_cast<std::int64_t>(own.size());
  bootstrap.all_gather(std::as_writable_bytes(std::span(counts)), sizeof(std::int64_t), deadline);
  for (std::int64_t& count : counts) count = std::clamp<std::int64_t>(count, 1, kMostRails);
  const auto most = static_cast<std::size_t>(*std::ranges::max_element(counts));
  if (most == 1 && !one_too) return {};
  std::vector<NicRecord> records(n * most);
  std::ranges::copy(own, records.begin() + static_cast<std::ptrdiff_t>(self * most));
  bootstrap.all_gather(std::as_writable_bytes(std::span(records)), most * sizeof(NicRecord),
                       deadline);
  AllNics all;
  all.nics.resize(n);
  all.positions.resize(n);
  for (std::size_t r = 0; r < n; ++r) {
    for (std::size_t d = 0; d < static_cast<std::size_t>(counts[r]); ++d) {
      all.nics[r].push_back(records[r * most + d].nic);
      all.positions[r].push_back(records[r * most + d].position);
    }
  }
  return all;
}

// The distinct lists of NICs: hosts of one kind measure the same.
std::string key_of(std::vector<std::vector<link::Nic>> nics) {
  std::ranges::sort(nics);
  nics.erase(std::unique(nics.begin(), nics.end()), nics.end());
  std::string key;
  for (const std::vector<link::Nic>& of_rank : nics) {
    for (const link::Nic& nic : of_rank) {
      key += fmt::format("{:x} {} {:x}, ", nic.fabric, nic.rate, nic.address);
    }
    key += "; ";
  }
  return key;
}

// Between the hosts that would measure.
RailRates stated(const link::Rails& rails, const std::vector<std::vector<link::Nic>>& nics,
                 std::span<const int> leaders) {
  RailRates rates{};
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

// Hosts of one address are containers or processes of one machine, which no NIC is between:
// processors limit there.
bool of_one_address(const std::vector<std::vector<link::Nic>>& nics, std::span<const int> leaders) {
  const auto nic = [&](int rank) { return nics[static_cast<std::size_t>(rank)].front(); };
  const link::Nic first = nic(leaders.front());
  return first.address != 0 && std::ranges::all_of(leaders, [&](int rank) {
           return nic(rank).fabric == first.fabric && nic(rank).address == first.address;
         });
}

// `name_of` a rail, for the log; none on ranks that do not log.
FoundRails fastest_first(const link::Rails& rails, std::span<const double> rates,
                         const std::function<std::string(int)>& name_of) {
  std::vector<int> order(rates.size());
  std::iota(order.begin(), order.end(), 0);
  const auto rate_of = [&](int rail) { return rates[static_cast<std::size_t>(rail)]; };
  std::ranges::stable_sort(order, std::greater(), rate_of);
  const double fastest = rate_of(order.front());
  // None could be measured: the first link that is wanted says why.
  if (!(fastest > 0)) return {.rails = rails.reordered(std::array{0}), .rates = {}};
  FoundRails found;
  std::vector<int> kept;
  for (const int rail : order) {
    if (rate_of(rail) < kLeastShare * fastest) {
      if (name_of) {
        log::warn("NIC {} of {} is left out: {}", name_of(rail), rates.size(),
                  rate_of(rail) > 0 ? fmt::format("{:.4g} MB/s, the fastest {:.4g}",
                                                  rate_of(rail) / 1e6, fastest / 1e6)
                                    : std::string("the next host cannot be reached over it"));
      }
      continue;
    }
    kept.push_back(rail);
    found.rates.push_back(rate_of(rail));
  }
  std::vector<int> alike;
  double first = 0;  // of those that carry alike
  for (const double rate : found.rates) {
    if (alike.empty() || !tune::as_fast(rate, first)) {
      first = rate;
      alike.push_back(0);
    }
    ++alike.back();
  }
  found.rails = rails.reordered(kept, alike);
  if (found.rates.size() == 1) {
    found.rate_of_one = found.rates.front();
    found.rates.clear();
  }
  return found;
}

}  // namespace

std::vector<transport::DeviceProperties> devices_of(const transport::Transport& transport) {
  std::vector<transport::DeviceProperties> devices;
  for (int d = 0; d < std::min(transport.num_devices(), kMostRails); ++d) {
    devices.push_back(transport.properties(d));
  }
  return devices;
}

link::Rails rails_near_gpus(bootstrap::Bootstrap& bootstrap, const link::Rails& rails,
                            std::span<const link::NicPosition> nearby, Deadline deadline) {
  using OfRank = std::array<link::NicPosition, kMostRails>;
  std::vector<OfRank> all(static_cast<std::size_t>(bootstrap.size()));
  std::ranges::copy(nearby, all[static_cast<std::size_t>(bootstrap.rank())].begin());
  bootstrap.all_gather(std::as_writable_bytes(std::span(all)), sizeof(OfRank), deadline);
  std::vector<std::vector<link::NicPosition>> positions;
  for (const OfRank& each : all) positions.emplace_back(each.begin(), each.end());
  return rails.placed(std::move(positions));
}

FoundRails find_rails(bootstrap::Bootstrap& bootstrap, const Config& config, KnownRates& known,
                      transport::Transport& transport, const Machine* machine,
                      std::span<const int> host_of_rank, int most, bool one_too, Deadline deadline,
                      const std::function<void()>& waiting) {
  const auto n = static_cast<std::size_t>(bootstrap.size());
  const auto self = static_cast<std::size_t>(bootstrap.rank());
  const std::vector<transport::DeviceProperties> devices = devices_of(transport);
  const std::vector<link::NicPosition> positions =
      machine != nullptr ? place_nics(*machine, bootstrap.rank(), devices)
                         : place_nics(tune::Processors::usable(), devices);
  std::vector<NicRecord> own;
  for (std::size_t d = 0; d < devices.size(); ++d) {
    own.push_back({nic_of(devices[d]), positions[d]});
  }
  AllNics all_nics = exchange(bootstrap, own, one_too, deadline);
  if (all_nics.nics.empty()) return {};
  const std::vector<std::vector<link::Nic>>& nics = all_nics.nics;
  const link::Rails rails(nics, host_of_rank, most, std::move(all_nics.positions));
  const std::vector<int> leaders = first_ranks(host_of_rank);
  if (rails.count() == 1 && (!one_too || of_one_address(nics, leaders))) {
    return {.rails = rails, .rates = {}};
  }
  const auto count = static_cast<std::size_t>(rails.count());
  const bool tells = bootstrap.rank() == 0;
  std::string key;
  // Rank 0 says whether to measure, for all to do the same.
  RatesRecord agreed;
  if (tells && config.text(Setting::kNicRates) == "stated") {
    agreed = {1, stated(rails, nics, leaders), 0};
  } else if (tells) {
    key = key_of(nics) + fmt::format("{}", count);
    const std::vector<double> before = known.get(key);
    agreed.known = before.size() == count ? 1 : 0;
    std::ranges::copy(before, agreed.rates.begin());
  }
  if (tells) agreed.sharing_cost = transport.properties(0).sharing_cost;
  bootstrap.broadcast(std::as_writable_bytes(std::span(&agreed, 1)), 0, deadline);
  if (agreed.known == 0) {
    std::vector<RailRates> all(n);
    const std::vector<double> mine =
        measure_rails(bootstrap, transport, rails, leaders, deadline, waiting);
    std::ranges::copy(mine, all[self].begin());
    bootstrap.all_gather(std::as_writable_bytes(std::span(all)), sizeof(RailRates), deadline);
    agreed.rates = all[0];
    for (const int leader : leaders) {
      const RailRates& theirs = all[static_cast<std::size_t>(leader)];
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
  found.sharing_cost = agreed.sharing_cost;
  if (tells) {
    std::string text;
    for (const double rate : found.rates) text += fmt::format(" {:.4g}", rate / 1e6);
    if (found.rate_of_one > 0) text = fmt::format(" {:.4g}", found.rate_of_one / 1e6);
    if (!text.empty()) {
      log::info(log::kInit, "{} NICs of each host are used, MB/s:{} ({})",
                std::max<std::size_t>(1, found.rates.size()), text,
                config.text(Setting::kNicRates));
    }
  }
  return found;
}

}  // namespace ropewalk::machine
