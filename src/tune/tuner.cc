#include "tune/tuner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <optional>
#include <tuple>

#include "core/error.h"
#include "core/log.h"
#include "tune/host_pricing.h"

namespace ropewalk::tune {
namespace {

// Other algorithms that calls may try, at most; and the price up to which they may, over that of
// the chosen one. Each takes some calls of every trial. Four processes on two cores of an EPYC,
// broadcasts of 128 KiB: a binary tree took half of the time of the chain that was chosen, and has
// 1.06 of its price.
constexpr std::size_t kMostOthers = 2;
constexpr double kWorthTrying = 1.3;
// The same for the soonest one by address, whose price is of data from memory: what caches hold is
// copied at several times that rate, and from large pages at twice that. Four processes on two
// cores of an EPYC, broadcasts of 4 MiB in caches: direct sends by address 0.5 of the time of trees
// through slots, whose price is 0.6 of theirs.
constexpr double kWorthTryingByAddress = 2;
// Algorithms differ in the links that they make.
constexpr int kMostRanksOfOthers = 64;

}  // namespace

Tuner::Tuner(Candidates candidates, std::unique_ptr<Pricing> pricing)
    : candidates_(std::move(candidates)), pricing_(std::move(pricing)) {}

std::shared_ptr<const Choice> Tuner::choose(Collective collective, int root,
                                            std::size_t unit_bytes) {
  if (pricing_->shared_by_sizes()) {
    return for_bucket(collective, root, unit_bytes);
  }
  auto choice = std::make_shared<const Choice>(cheapest(collective, root, unit_bytes));
  log::info(log::kTuning,
            "{} of {} bytes in a unit, {} GPUs: {} {} {}x{} chunk {}, {:.4g} us predicted",
            name(collective), unit_bytes, candidates_.facts().num_ranks, choice->algorithm,
            executor::name(choice->protocol), choice->channels, choice->threads,
            choice->chunk_bytes, choice->predicted_seconds * 1e6);
  return choice;
}

std::shared_ptr<const Choice> Tuner::for_bucket(Collective collective, int root,
                                                std::size_t unit_bytes) {
  const auto bucket = static_cast<std::size_t>(std::bit_width(unit_bytes));
  std::shared_ptr<const Choice>& entry =
      has_root(collective) && root != 0 ? rooted_[{collective, root}][bucket]
                                        : rootless_[static_cast<std::size_t>(collective)][bucket];
  if (entry == nullptr) {
    // Most sizes are powers of two.
    const std::size_t least = std::bit_floor(unit_bytes);
    Choice choice = cheapest(collective, root, least);
    add_others(choice, collective, root, least);
    entry = std::make_shared<const Choice>(std::move(choice));
    log::info(log::kTuning, "{} of {} to {} bytes in a unit, {} ranks: {}, {:.4g} us predicted",
              name(collective), least, least == 0 ? 0 : 2 * (least - 1) + 1,
              candidates_.facts().num_ranks, entry->algorithm, entry->predicted_seconds * 1e6);
  }
  return entry;
}

Choice Tuner::cheapest(Collective collective, int root, std::size_t unit_bytes) {
  if (const Candidate* given = given_for(collective, root)) {
    Choice choice = pricing_->price(*given, unit_bytes);
    set_schedule(choice, collective, root, *given);
    return choice;
  }
  // Pricing on a machine takes milliseconds: what cannot be the cheapest is not priced. First those
  // that may be the fastest; of equals that of the fewest hops wins, then the first one, as in
  // priced().
  const std::vector<Candidate>& all = candidates_.get(collective, root);
  std::vector<double> least;
  for (const Candidate& candidate : all) least.push_back(pricing_->least(candidate, unit_bytes));
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return least[a] < least[b]; });
  const auto key = [&](const Choice& choice, std::size_t candidate) {
    return std::tuple(choice.predicted_seconds, all[candidate].shape.longest_path, candidate);
  };
  std::optional<std::pair<Choice, std::size_t>> best;
  for (const std::size_t i : order) {
    if (best.has_value() && least[i] > best->first.predicted_seconds) break;
    Choice choice = pricing_->price(all[i], unit_bytes);
    const bool better = !best.has_value() || key(choice, i) < key(best->first, best->second);
    if (better) best.emplace(std::move(choice), i);
  }
  RW_ASSERT(best.has_value());
  Choice choice = std::move(best->first);
  set_schedule(choice, collective, root, all[best->second]);
  return choice;
}

void Tuner::add_others(Choice& choice, Collective collective, int root, std::size_t unit_bytes) {
  if (!choice.other.has_value()) return;
  choice.others.push_back(std::make_shared<const Choice>(with_other_form(choice)));
  const GroupFacts& facts = candidates_.facts();
  const bool named = is_given(collective, root) || is_forced(collective, root);
  // Sums depend on the order of additions, which is the algorithm's. Between hosts a trial would
  // make connections, and what a machine's links allow is known better than a few calls tell.
  if (reduces(collective) || named || facts.num_hosts > 1 || choice.routed != nullptr ||
      facts.num_ranks > kMostRanksOfOthers) {
    return;
  }
  using Others = std::vector<std::pair<Choice, const Candidate*>>;
  Others sooner;
  Others by_address;
  for (const Candidate& candidate : candidates_.get(collective, root)) {
    const bool plain = candidate.routed == nullptr && candidate.cost == nullptr &&
                       candidate.nics == nullptr && candidate.channels == choice.channels;
    if (!plain || candidate.algorithm == choice.algorithm) continue;
    const Choice other = pricing_->price(candidate, unit_bytes);
    if (other.predicted_seconds <= kWorthTrying * choice.predicted_seconds) {
      sooner.emplace_back(other, &candidate);
    }
    if (!other.other.has_value()) continue;
    Choice giving = other.address_chunk_bytes > 0 ? other : with_other_form(other);
    if (giving.predicted_seconds <= kWorthTryingByAddress * choice.predicted_seconds) {
      by_address.emplace_back(std::move(giving), &candidate);
    }
  }
  const auto add = [&](Choice other, const Candidate& candidate) {
    set_schedule(other, collective, root, candidate);
    // A broadcast's ring is its chain.
    const auto same = [&](const Choice& as) {
      return (as.address_chunk_bytes > 0) == (other.address_chunk_bytes > 0) &&
             as.schedule->schedule().programs == other.schedule->schedule().programs;
    };
    const bool known = same(choice) || std::ranges::any_of(choice.others, [&](const auto& each) {
                         return same(*each);
                       });
    if (!known) choice.others.push_back(std::make_shared<const Choice>(std::move(other)));
    return !known;
  };
  const auto add_first = [&](Others& others, std::size_t most) {
    std::ranges::stable_sort(others, {},
                             [](const auto& other) { return other.first.predicted_seconds; });
    std::size_t added = 0;
    for (auto& [other, candidate] : others) {
      if (added == most) break;
      if (add(std::move(other), *candidate)) ++added;
    }
  };
  add_first(by_address, 1);
  add_first(sooner, kMostOthers);
}

void Tuner::set_schedule(Choice& choice, Collective collective, int root,
                         const Candidate& candidate) {
  choice.index = next_index_++;
  const double share = choice.routed == nullptr ? 0 : choice.routed->hybrid_share;
  std::shared_ptr<const schedule::Checked>& schedule =
      chosen_[{collective, has_root(collective) ? root : 0, choice.algorithm, choice.channels,
               choice.nic_rule, share}];
  if (schedule == nullptr) {
    schedule = candidates_.schedule(collective, root, candidate, choice.channels);
  }
  choice.schedule = schedule;
}

std::vector<Choice> Tuner::priced(Collective collective, int root, std::size_t unit_bytes) {
  std::vector<Choice> all;
  // Of equals that of the fewest hops, then the first of the registry, on every rank.
  std::vector<const Candidate*> candidates;
  for (const Candidate& candidate : candidates_.get(collective, root)) {
    candidates.push_back(&candidate);
  }
  std::ranges::stable_sort(
      candidates, {}, [](const Candidate* candidate) { return candidate->shape.longest_path; });
  for (const Candidate* candidate : candidates) {
    all.push_back(pricing_->price(*candidate, unit_bytes));
  }
  std::ranges::stable_sort(all, {}, &Choice::predicted_seconds);
  return all;
}

void Tuner::add_limits(const topology::Topology& machine, Collective collective, int root,
                       std::span<Choice> choices) {
  DefaultRoutes routes(machine);
  for (Choice& choice : choices) {
    const bool two_classes = hybrid_channels_of(choice.routed) > 0;
    if (choice.algbw_gbps > 0 || two_classes || !std::isfinite(choice.predicted_seconds)) continue;
    try {
      std::shared_ptr<const schedule::Checked> checked = choice.schedule;
      if (checked == nullptr) {
        const Candidate candidate{.algorithm = choice.algorithm,
                                  .channels = choice.channels,
                                  .shape = {},
                                  .routed = choice.routed};
        checked = candidates_.schedule(collective, root, candidate, choice.channels);
      }
      const MachineCost cost(routes, checked->schedule(), checked->report().longest_path,
                             choice.routed == nullptr ? schedule::Routes{} : choice.routed->routes,
                             {});
      choice.algbw_gbps = cost.algbw();
      choice.limiting_links = cost.limiting_links();
    } catch (const Error& error) {
      log::trace(log::kTuning, "{} by {} has no limit on {}: {}", name(collective),
                 choice.algorithm, machine.name(), error.what());
    }
  }
}

// ---- plans that were made in the background ----------------------------------------------

void Tuner::adopt(Collective collective, int root) {
  const int its_root = has_root(collective) ? root : 0;
  candidates_.adopt(collective, its_root);
  if (its_root == 0) {
    rootless_[static_cast<std::size_t>(collective)] = {};
  } else {
    rooted_.erase({collective, its_root});
  }
  std::erase_if(chosen_, [&](const auto& entry) {
    const auto& [of, from, algorithm, channels, rule, share] = entry.first;
    return of == collective && from == its_root && algorithm != kGivenSchedule;
  });
}

bool Tuner::scale_hybrid(double scale) {
  if (!candidates_.scale_hybrid(scale)) return false;
  rootless_ = {};
  rooted_.clear();
  // Their schedules go by share: those of other shares are not needed any more.
  std::erase_if(chosen_, [](const auto& entry) { return std::get<double>(entry.first) > 0; });
  return true;
}

Choice Tuner::later(Collective collective, int root, std::size_t unit_bytes) {
  std::optional<Choice> best;
  for (const Candidate& candidate : candidates_.later(collective, root)) {
    Choice choice = pricing_->price(candidate, unit_bytes);
    if (!best.has_value() || choice.predicted_seconds < best->predicted_seconds) {
      best = std::move(choice);
    }
  }
  RW_ASSERT(best.has_value());
  return *std::move(best);
}

// ---- schedules of the user --------------------------------------------------------------

void Tuner::use(const std::shared_ptr<const schedule::Checked>& given) {
  const Collective collective = given->schedule().collective;
  forget_choices();
  given_.insert_or_assign(collective, candidates_.given(given));
}

void Tuner::forget() {
  forget_choices();
  given_.clear();
}

void Tuner::forget_choices() {
  rootless_ = {};
  rooted_.clear();
  std::erase_if(chosen_, [](const auto& entry) {
    return std::get<std::string>(entry.first) == kGivenSchedule;
  });
}

const Candidate* Tuner::given_for(Collective collective, int root) const {
  const auto found = given_.find(collective);
  if (found == given_.end()) return nullptr;
  const schedule::Schedule& schedule = found->second.routed->checked->schedule();
  return has_root(collective) && schedule.root != root ? nullptr : &found->second;
}

// ---- making one -------------------------------------------------------------------------

Tuner host_tuner(const Config& config, const GroupFacts& facts, const MachineConstants& constants,
                 schedule::CheckedSchedules& schedules,
                 std::shared_ptr<const topology::Topology> machine,
                 std::shared_ptr<KeptPlans> plans) {
  (void)allowed_protocols(config, {executor::Protocol::kSimple});
  auto pricing = std::make_unique<HostPricing>(config, facts, constants);
  CandidateOptions options;
  options.plans_for_hosts = true;
  options.block_trees = true;
  options.message_seconds = pricing->message_seconds();
  const auto given = static_cast<int>(config.integer(Setting::kChannels));
  const auto rails = static_cast<int>(facts.rail_rates.size());
  if (given > 0) {
    options.channels = {given};
  } else if (rails > 1 && (machine == nullptr || facts.num_ranks < 2)) {
    options.channels = {1, rails};
  }
  return {Candidates(config, facts, std::move(options), schedules, std::move(machine),
                     std::move(plans)),
          std::move(pricing)};
}

Tuner device_tuner(const Config& config, GroupFacts facts, const DeviceLimits& limits,
                   const DeviceConstants& constants, schedule::CheckedSchedules& schedules,
                   std::shared_ptr<const topology::Topology> machine,
                   std::shared_ptr<KeptPlans> plans) {
  facts.max_channels = limits.channels;
  facts.lag_slots = limits.lag_slots;
  CandidateOptions options;
  options.by_peer_access = true;
  return {Candidates(config, std::move(facts), std::move(options), schedules, std::move(machine),
                     std::move(plans)),
          std::make_unique<DevicePricing>(config, limits, constants)};
}

}  // namespace ropewalk::tune
