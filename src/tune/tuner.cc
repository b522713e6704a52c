#include "tune/tuner.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "plan/planner.h"
#include "tune/forced_algorithms.h"
#include "tune/machine_constants.h"
#include "tune/planned_candidates.h"
#include "tune/rail_weights.h"

namespace ropewalk::tune {
namespace {

// Beyond this many ranks the schedules with a link between every two ranks are not considered where
// another one exists: their number of links, and the time to check them, grow with the square.
constexpr int kAllPairsRanks = 32;
// Smaller chunks must promise a tenth: the model knows only the latency of a call, and of calls
// back to back fewer chunks are better.
constexpr double kWorthCutting = 0.9;
// Of the links of a machine where steps lag the model knows what filling and draining takes, too.
constexpr double kWorthCuttingLags = 0.97;
// Nor do smaller ones pay. Over one hop, halves of 4 KiB and less took 1.2 to 1.4 times as long as
// the whole, back to back, and gained little one at a time.
constexpr std::size_t kLeastChunk = 2048;
constexpr std::size_t kLeastChunkOverOneHop = 8192;
// A plan's all-reduce that relies on lags may send two chunks over a link in a round, up and down.
constexpr std::uint32_t kLeastLagSlots = 4;
constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

bool all_pairs(std::string_view algorithm) {
  return algorithm == "one_shot" || algorithm == "two_shot" || algorithm == "direct";
}

// Whether plans of this name are made for the collective at all.
bool plans_serve(std::string_view name, Collective collective) {
  for (const plan::AlgorithmInfo& algorithm : plan::algorithms()) {
    if (!name.starts_with("plan-" + std::string(algorithm.name))) continue;
    const auto& served = algorithm.collectives;
    return std::find(served.begin(), served.end(), collective) != served.end();
  }
  return false;
}

// What a message costs each of its ends beside the time on links.
double message_seconds(const CostContext& context) {
  const MachineConstants& machine = context.machine;
  return context.ranks_per_core *
         (context.network ? machine.network_message / 2 : machine.chunk_cost);
}

}  // namespace

struct Tuner::OnMachine {
  OnMachine(const topology::Topology& found, std::shared_ptr<KeptPlans> kept, std::string where)
      : machine(found),
        routes(machine.topology()),
        plans(kept == nullptr ? std::make_shared<KeptPlans>() : std::move(kept)),
        folder(std::move(where)) {}
  PlannedMachine machine;
  DefaultRoutes routes;
  std::shared_ptr<KeptPlans> plans;
  std::string folder;
};

Tuner::~Tuner() = default;

Tuner::Tuner(const Config& config, const GroupFacts& facts, const MachineConstants& constants,
             schedule::CheckedSchedules& schedules,
             std::shared_ptr<const topology::Topology> machine, std::shared_ptr<KeptPlans> plans)
    : facts_(facts),
      machine_(std::move(machine)),
      schedules_(schedules),
      forced_(forced_algorithms(config.text(Setting::kAlgorithm))) {
  context_.machine = constants;
  context_.ranks_per_core = std::max(1.0, facts.ranks_per_processor);
  context_.network = facts.num_hosts > 1;
  given_channels_ = static_cast<int>(config.integer(Setting::kChannels));
  const std::size_t given = config.bytes(Setting::kSingleCopyBytes);
  if (given != 0) {
    address_bytes_ = given;
  } else if (facts.same_process) {
    // No system call: it pays as soon as it saves a copy of some lines.
    address_bytes_ = 1024;
  } else {
    // One copy instead of two pays when the saved one costs more than the system call.
    address_bytes_ = static_cast<std::size_t>(constants.address_cost * constants.copy_rate);
  }
  point_to_point_.algorithm = "direct";
  set_chunks(point_to_point_);
  if (machine_ != nullptr && facts.num_ranks > 1) {
    const bool keeps = config.flag(Setting::kTune);
    const std::filesystem::path file = keeps ? tuning_file(config) : std::string();
    on_machine_ =
        std::make_unique<OnMachine>(*machine_, std::move(plans), file.parent_path().string());
  }
}

void Tuner::set_chunks(Choice& choice) const {
  choice.chunk_bytes = facts_.slot_bytes;
  choice.address_bytes = address_bytes_;
  choice.address_chunk_bytes = facts_.all_by_address ? std::size_t{1} << 20U : 0;
  // Where ranks outnumber cores, a rank that helps takes the core from another one that copies:
  // shorter scatters then took 1.4 times as long.
  choice.share_bytes = context_.ranks_per_core > 1 ? std::size_t{1} << 20U : std::size_t{64} << 10U;
}

const Choice& Tuner::choose(Collective collective, int root, std::size_t unit_bytes) {
  const auto bucket = static_cast<std::size_t>(std::bit_width(unit_bytes));
  std::unique_ptr<Choice>& entry =
      has_root(collective) && root != 0
          ? rooted_[{collective, root}][bucket % kBuckets]
          : rootless_[static_cast<std::size_t>(collective)][bucket % kBuckets];
  if (entry == nullptr) {
    // All sizes of a bucket share the choice that is best for its middle.
    const std::size_t middle = bucket < 2 ? unit_bytes : std::size_t{3} << (bucket - 2);
    entry = std::make_unique<Choice>(cheapest(collective, root, middle));
    entry->index = next_index_++;
    const std::size_t last = (std::size_t{1} << std::min<std::size_t>(bucket, 63U)) - 1;
    log::info(log::kTuning, "{} of {} to {} bytes in a unit, {} ranks: {}, {:.4g} us predicted",
              name(collective), bucket == 0 ? 0 : (last >> 1U) + 1, last, facts_.num_ranks,
              entry->algorithm, entry->predicted_seconds * 1e6);
  }
  return *entry;
}

schedule::Request Tuner::request_of(Collective collective, int root, int channels) const noexcept {
  return {collective, facts_.num_ranks, has_root(collective) ? root : 0, channels};
}

std::vector<int> Tuner::numbers_of_channels() const {
  const auto rails = static_cast<int>(facts_.rail_rates.size());
  if (given_channels_ > 0) return {given_channels_};
  return rails > 1 && on_machine_ == nullptr ? std::vector<int>{1, rails} : std::vector<int>{1};
}

std::optional<Tuner::Candidate> Tuner::over_rails(const std::string& algorithm,
                                                  const schedule::Request& request) {
  std::shared_ptr<const schedule::Checked> checked = schedules_.get(algorithm, request);
  const bool many = facts_.rail_rates.size() > 1 && checked->schedule().num_channels() > 1;
  if (many && checked->schedule().num_channels() > facts_.max_channels) return std::nullopt;
  std::shared_ptr<const RoutedSchedule> own;
  if (many) {
    schedule::Schedule weighted = checked->schedule();
    weighted.weight = channel_weights(facts_.rail_rates, weighted.num_channels());
    if (std::ranges::adjacent_find(weighted.weight, std::not_equal_to()) != weighted.weight.end()) {
      checked =
          std::make_shared<const schedule::Checked>(schedule::Checked::from(std::move(weighted)));
      own = std::make_shared<const RoutedSchedule>(RoutedSchedule{algorithm, checked, {}});
    }
  }
  Candidate candidate{algorithm, request.channels, ScheduleShape::of(*checked), std::move(own),
                      nullptr};
  if (!facts_.rail_rates.empty()) {
    candidate.shape.leaving_host = leaving_host(checked->schedule(), facts_.host_of_rank);
  }
  return candidate;
}

bool Tuner::is_forced(Collective collective, int root) {
  const auto forced = forced_.find(collective);
  if (forced == forced_.end()) return false;
  if (forced_plan(collective) != nullptr) return true;
  const schedule::Request request = request_of(collective, root, std::max(1, given_channels_));
  return std::ranges::any_of(schedule::algorithms(), [&](const schedule::Algorithm& row) {
    return row.name == forced->second && row.supports(request);
  });
}

const std::string* Tuner::forced_plan(Collective collective) const {
  const auto forced = forced_.find(collective);
  const bool names_plan =
      forced != forced_.end() && facts_.num_ranks > 1 && plans_serve(forced->second, collective);
  return names_plan ? &forced->second : nullptr;
}

std::vector<std::string> Tuner::registered(Collective collective, int root) {
  if (is_forced(collective, root)) return {forced_.at(collective)};
  const schedule::Request request = request_of(collective, root, std::max(1, given_channels_));
  std::vector<std::string> names;
  std::vector<std::string> dense;
  for (const schedule::Algorithm& row : schedule::algorithms()) {
    if (!row.supports(request)) continue;
    (all_pairs(row.name) ? dense : names).emplace_back(row.name);
  }
  if (names.empty() || facts_.num_ranks <= kAllPairsRanks) {
    names.insert(names.end(), dense.begin(), dense.end());
  }
  return names;
}

Tuner::Candidates& Tuner::candidates(Collective collective, int root) {
  const auto key = std::pair(collective, has_root(collective) ? root : 0);
  if (const auto known = candidates_.find(key); known != candidates_.end()) return known->second;
  return candidates_.emplace(key, make_candidates(collective, key.second)).first->second;
}

Tuner::Candidates Tuner::make_candidates(Collective collective, int root) {
  Candidates all;
  const auto cost_of = [&](const schedule::Checked& checked, const schedule::Routes& routes) {
    MachineCostOptions options;
    options.message_seconds = message_seconds(context_);
    if (facts_.lag_slots > 0) {
      options.slots = static_cast<int>(facts_.lag_slots);
      options.lags = true;
    }
    return std::make_unique<MachineCost>(on_machine_->routes, checked.schedule(),
                                         checked.report().longest_path, routes, options);
  };
  std::vector<Candidate> without_routes;
  const std::string* plan = forced_plan(collective);
  if (plan == nullptr) {
    for (const std::string& algorithm : registered(collective, root)) {
      for (const int channels : numbers_of_channels()) {
        const schedule::Request request = request_of(collective, root, channels);
        std::optional<Candidate> candidate = over_rails(algorithm, request);
        if (!candidate.has_value()) continue;
        if (on_machine_ != nullptr) {
          try {
            candidate->cost =
                cost_of(candidate->routed != nullptr ? *candidate->routed->checked
                                                     : *schedules_.get(algorithm, request),
                        {});
          } catch (const Error& error) {
            log::trace(log::kTuning, "{} cannot run {} on this machine: {}", name(collective),
                       algorithm, error.what());
            without_routes.push_back(std::move(*candidate));
            continue;
          }
        }
        all.push_back(std::move(*candidate));
      }
    }
  }
  if (on_machine_ == nullptr) {
    if (plan == nullptr) return all;
    throw Error(Errc::kInvalidArgument,
                "setting ROPEWALK_ALGORITHM: \"{}\" is a plan for a machine, and none is known; "
                "the setting TOPOLOGY can name it",
                *plan);
  }
  if (plan != nullptr || !is_forced(collective, root)) {
    const std::shared_ptr<const PlannedCandidates> planned = on_machine_->plans->get(
        on_machine_->machine,
        {collective, root, facts_.max_channels, facts_.lag_slots >= kLeastLagSlots},
        on_machine_->folder);
    for (const std::shared_ptr<const RoutedSchedule>& routed : planned->schedules) {
      if (plan != nullptr && routed->algorithm != *plan) continue;
      const ScheduleShape shape = ScheduleShape::of(*routed->checked);
      all.push_back({routed->algorithm, shape.channels, shape, routed,
                     cost_of(*routed->checked, routed->routes)});
    }
    if (plan != nullptr && all.empty()) {
      const auto why = planned->refused.find(*plan);
      throw Error(Errc::kInvalidArgument, "setting ROPEWALK_ALGORITHM: no \"{}\" for {} on {}: {}",
                  *plan, name(collective), machine_->name(),
                  why == planned->refused.end() ? "not one of this machine's" : why->second);
    }
  }
  // A machine whose GPUs have no way to each other but through GPUs, and no plan: what is known of
  // the host's memory must do.
  if (all.empty()) return without_routes;
  return all;
}

Choice Tuner::priced(Candidate& candidate, std::size_t unit_bytes) const {
  const ScheduleShape& shape = candidate.shape;
  Choice choice;
  choice.algorithm = candidate.algorithm;
  choice.channels = candidate.channels;
  choice.routed = candidate.routed;
  set_chunks(choice);
  if (candidate.cost != nullptr) {
    choice.algbw_gbps = candidate.cost->algbw();
    choice.limiting_links = candidate.cost->limiting_links();
  }
  CostContext context = context_;
  context.nic_rate = rate_of_channels(facts_.rail_rates, shape.channels);
  const auto seconds_of = [&](std::size_t chunk, bool by_address) {
    if (candidate.cost == nullptr) return predict(shape, context, unit_bytes, chunk, by_address);
    return candidate.cost->predict(static_cast<double>(unit_bytes), static_cast<double>(chunk));
  };
  // The walks of a machine's links cover sizes within a factor of four.
  const std::size_t step = candidate.cost == nullptr ? 2 : 4;
  // Staged: a chunk fits a slot; smaller ones fill a long chain sooner.
  double staged = std::numeric_limits<double>::infinity();
  const std::size_t least = shape.longest_path > 1 ? kLeastChunk : kLeastChunkOverOneHop;
  const bool lags = candidate.cost != nullptr && facts_.lag_slots > 0;
  const double worth = lags ? kWorthCuttingLags : kWorthCutting;
  for (std::size_t chunk = facts_.slot_bytes; chunk >= least || chunk == facts_.slot_bytes;
       chunk /= step) {
    const double seconds = seconds_of(chunk, false);
    if (seconds < staged * worth) {
      staged = seconds;
      choice.chunk_bytes = chunk;
    }
  }
  choice.predicted_seconds = staged;
  if (!facts_.all_by_address || !shape.by_address) {
    choice.address_chunk_bytes = 0;
    return choice;
  }
  double by_address = std::numeric_limits<double>::infinity();
  for (std::size_t chunk = std::size_t{4} << 20U; chunk >= address_bytes_ && chunk >= 4096;
       chunk /= step) {
    const double seconds = seconds_of(chunk, true);
    if (seconds < by_address * kWorthCutting) {
      by_address = seconds;
      choice.address_chunk_bytes = chunk;
    }
  }
  if (by_address < staged) {
    choice.predicted_seconds = by_address;
  } else {
    choice.address_bytes = kNever;
    choice.address_chunk_bytes = 0;
  }
  return choice;
}

Choice Tuner::cheapest(Collective collective, int root, std::size_t unit_bytes) {
  if (on_machine_ == nullptr) return std::move(priced(collective, root, unit_bytes).front());
  // Pricing takes milliseconds: what cannot be the cheapest is not priced. First those that may be
  // the fastest; of equals the first candidate wins, as in priced().
  Candidates& all = candidates(collective, root);
  const auto least = [&](const Candidate& candidate) {
    return candidate.cost == nullptr ? 0 : candidate.cost->least(static_cast<double>(unit_bytes));
  };
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return least(all[a]) < least(all[b]); });
  std::optional<std::pair<Choice, std::size_t>> best;
  for (const std::size_t i : order) {
    if (best.has_value() && least(all[i]) > best->first.predicted_seconds) break;
    Choice choice = priced(all[i], unit_bytes);
    const bool better =
        !best.has_value() || std::pair(choice.predicted_seconds, i) <
                                 std::pair(best->first.predicted_seconds, best->second);
    if (better) best.emplace(std::move(choice), i);
  }
  if (!best.has_value()) return std::move(priced(collective, root, unit_bytes).front());
  return std::move(best->first);
}

std::vector<Choice> Tuner::priced(Collective collective, int root, std::size_t unit_bytes) {
  std::vector<Choice> all;
  for (Candidate& candidate : candidates(collective, root)) {
    all.push_back(priced(candidate, unit_bytes));
  }
  if (all.empty()) {
    throw Error(Errc::kInvalidUsage, "no algorithm for {} over {} ranks", name(collective),
                facts_.num_ranks);
  }
  // Stable: of equals the first of the registry, on every rank.
  std::stable_sort(all.begin(), all.end(), [](const Choice& a, const Choice& b) {
    return a.predicted_seconds < b.predicted_seconds;
  });
  return all;
}

}  // namespace ropewalk::tune
