#include "tune/candidates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iterator>
#include <numeric>
#include <string_view>

#include "core/error.h"
#include "core/log.h"
#include "core/mutex.h"
#include "plan/planner.h"
#include "schedule/repeat.h"
#include "tune/hosts_machine.h"
#include "tune/machine_constants.h"
#include "tune/planned_candidates.h"
#include "tune/rail_weights.h"
#include "tune/worth_planning.h"

namespace ropewalk::tune {
namespace {

// Beyond this many ranks the schedules with a link between every two ranks are not considered where
// another one exists: their number of links, and the time to check them, grow with the square.
constexpr int kAllPairsRanks = 32;
// A plan's all-reduce that relies on lags may send two chunks over a link in a round, up and down.
constexpr std::uint32_t kLeastLagSlots = 4;
// Channels of a schedule that are checked for pairs without access. Each channel has its own ring
// order: from twice the number of ranks on, the orders repeat (schedule/building.h).
constexpr int kMostRingOrders = 64;

// CandidateOptions::block_trees
constexpr std::string_view kBlockTree = "binary_tree";

bool all_pairs(std::string_view algorithm) {
  return algorithm == "one_shot" || algorithm == "two_shot" || algorithm == "direct";
}

// Those that were faster over both classes of links (two H100,
// benchmarks/results/hybrid-2xh100.txt).
bool gains_by_hybrid(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kAllReduce ||
         collective == Collective::kAllGather;
}

// Data of the busiest link for which there is a share of the host's links: the shorter, the more of
// their time is set-up, and the last is long enough that it does not count.
constexpr double kHybridBytes[] = {0x1p25, 0x1p27, 0x1p29, 0x1p36};
// A candidate of its own for a share so many times the last one.
constexpr double kAnotherShare = 1.02;
// Of less data a smaller one gains less than what the second class of links costs: all-reduces of
// 32 MiB on two H200 took 1.03 of the time with 0.6 to 3% (benchmarks/results/hybrid-2xh200.txt).
constexpr double kLeastShare = 0.03;
constexpr double kAnyShareBytes = 0x1p27;

// Whether plans of this name are made for the collective at all.
bool plans_serve(std::string_view name, Collective collective) {
  for (const plan::AlgorithmInfo& algorithm : plan::algorithms()) {
    if (!name.starts_with("plan-" + std::string(algorithm.name))) continue;
    const auto& served = algorithm.collectives;
    return std::find(served.begin(), served.end(), collective) != served.end();
  }
  return false;
}

// ": it needs ...", or nothing.
std::string needs_of(std::string_view algorithm) {
  for (const schedule::Algorithm& row : schedule::algorithms()) {
    if (row.name == algorithm && !row.needs.empty()) return fmt::format(": it needs {}", row.needs);
  }
  return {};
}

// The machine's hosts, by rank; empty where there is one.
std::vector<int> hosts_of(const topology::Topology& machine) {
  std::vector<int> hosts;
  if (machine.hosts() < 2) return hosts;
  for (const topology::NodeIndex gpu : machine.gpus()) hosts.push_back(machine.node(gpu).host);
  return hosts;
}

int root_of(Collective collective, int root) { return has_root(collective) ? root : 0; }

}  // namespace

struct Candidates::Background {
  Mutex mutex;  // held while `hook` is called
  PlansMadeHook hook RW_GUARDED_BY(mutex);
  struct Entry {
    BackgroundPlans plans;
    std::shared_ptr<const PlannedCandidates> made;
  };
  std::map<std::pair<Collective, int>, Entry> entries RW_GUARDED_BY(mutex);
};

struct Candidates::OnMachine {
  OnMachine(const topology::Topology& found, std::shared_ptr<KeptPlans> kept, std::string where)
      : shared_machine(std::make_shared<const PlannedMachine>(found)),
        machine(*shared_machine),
        routes(machine.topology()),
        plans(kept == nullptr ? std::make_shared<KeptPlans>() : std::move(kept)),
        folder(std::move(where)) {}
  std::shared_ptr<const PlannedMachine> shared_machine;
  const PlannedMachine& machine;
  DefaultRoutes routes;
  std::shared_ptr<KeptPlans> plans;
  std::string folder;
};

Candidates::Candidates(const Config& config, GroupFacts facts, CandidateOptions options,
                       schedule::CheckedSchedules& schedules,
                       std::shared_ptr<const topology::Topology> machine,
                       std::shared_ptr<KeptPlans> plans)
    : facts_(std::move(facts)),
      options_(std::move(options)),
      schedules_(&schedules),
      machine_(std::move(machine)),
      hybrid_alone_(config.text(Setting::kHybrid) == "on"),
      forced_(forced_algorithms(config.text(Setting::kAlgorithm))) {
  host_of_rank_ = facts_.host_of_rank;
  const std::vector<double> rates =
      facts_.nic_rate > 0 ? std::vector{facts_.nic_rate} : facts_.rail_rates;
  if (machine_ == nullptr && options_.plans_for_hosts && !rates.empty()) {
    nic_hosts_ = std::make_shared<const NicHosts>(facts_.host_of_rank, rates);
  }
  for_hosts_ = machine_ == nullptr && options_.plans_for_hosts && can_plan(facts_);
  if (facts_.num_ranks < 2 || (machine_ == nullptr && !for_hosts_)) return;
  // The same, unless the machine is emulated: then each rank counts as a host of its own.
  if (!for_hosts_ && machine_->gpus().size() == static_cast<std::size_t>(facts_.num_ranks)) {
    host_of_rank_ = hosts_of(*machine_);
  }
  const std::string& planning = config.text(Setting::kPlanning);
  if (planning == "background") planning_ = Planning::kBackground;
  if (planning == "wait") planning_ = Planning::kWait;
  const bool keeps = config.flag(Setting::kTune);
  const std::filesystem::path file = keeps ? tuning_file(config) : std::string();
  on_machine_ = [machine = machine_, hosts = for_hosts_ ? facts_.host_of_rank : std::vector<int>(),
                 plans = std::move(plans), folder = file.parent_path().string()] {
    return std::make_unique<OnMachine>(machine != nullptr ? *machine : hosts_machine(hosts), plans,
                                       folder);
  };
}

Candidates::~Candidates() {
  if (background_ == nullptr) return;
  const Lock lock(background_->mutex);
  background_->hook = nullptr;
}
Candidates::Candidates(Candidates&&) noexcept = default;

schedule::Request Candidates::request_of(Collective collective, int root,
                                         int channels) const noexcept {
  return {collective, facts_.num_ranks,  root_of(collective, root),
          channels,   facts_.ring_order, host_of_rank_};
}

schedule::Request Candidates::hybrid_request(Collective collective, int root) const noexcept {
  const HybridLinks& links = facts_.hybrid;
  return request_of(collective, root, links.host_alone ? links.channels : facts_.max_channels);
}

double Candidates::host_path_units(const std::string& algorithm, schedule::Request request,
                                   const schedule::Checked& compiled) {
  if (facts_.host_path_pairs.empty()) return 0;
  // The call may use more channels than the candidate was compiled with, and each has its own ring
  // order. If one channel sends over such a pair, that decides for all of them, since they share
  // the protocol and the size of chunks.
  request.channels = std::max(request.channels, std::min(2 * request.num_ranks, kMostRingOrders));
  try {
    return units_over(schedules_->get(algorithm, request)->schedule(), facts_.host_path_pairs);
  } catch (const Error&) {  // too many steps for it: nor will the call take that many channels
    return units_over(compiled.schedule(), facts_.host_path_pairs);
  }
}

std::vector<Candidate> Candidates::over_rails(const std::string& algorithm,
                                              const schedule::Request& request) {
  const std::shared_ptr<const schedule::Checked> plain = schedules_->get(algorithm, request);
  const int channels = plain->schedule().num_channels();
  const bool many = facts_.rail_rates.size() > 1 && channels > 1;
  if (many && channels > facts_.max_channels) return {};
  const double on_host_path = host_path_units(algorithm, request, *plain);
  std::vector<Candidate> made;
  const auto add = [&](plan::NicRule rule, const std::shared_ptr<const schedule::Checked>& checked,
                       std::shared_ptr<const RoutedSchedule> own) {
    ScheduleShape shape = ScheduleShape::of(*checked, facts_.host_of_rank);
    shape.host_path_units = on_host_path;
    made.push_back({.algorithm = algorithm,
                    .nic_rule = rule,
                    .channels = request.channels,
                    .shape = shape,
                    .routed = std::move(own),
                    .nics = nics_of(shape, checked)});
  };
  const std::vector<int> weights =
      many ? channel_weights(facts_.rail_rates, channels) : std::vector<int>();
  if (std::ranges::adjacent_find(weights, std::not_equal_to()) == weights.end()) {
    add(plan::NicRule::kBalanced, plain, nullptr);
    return made;
  }
  schedule::Schedule weighted = plain->schedule();
  weighted.weight = weights;
  auto checked =
      std::make_shared<const schedule::Checked>(schedule::Checked::from(std::move(weighted)));
  add(plan::NicRule::kBalanced, checked,
      std::make_shared<const RoutedSchedule>(RoutedSchedule{algorithm, checked, {}}));
  if (nic_hosts_ != nullptr) add(plan::NicRule::kLeastUsed, plain, nullptr);
  return made;
}

std::vector<Candidate> Candidates::over_both_classes(const std::string& algorithm,
                                                     Collective collective, int root) {
  const HybridLinks& links = facts_.hybrid;
  const schedule::Request request = hybrid_request(collective, root);
  const std::shared_ptr<const schedule::Checked> plain = schedules_->get(algorithm, request);
  if (plain->schedule().num_channels() != request.channels) return {};
  const int hops = ScheduleShape::of(*plain).longest_path;
  std::vector<Candidate> made;
  double last = 0;
  for (const double bytes : kHybridBytes) {
    const double share = links.host_share(hops, has_root(collective), bytes);
    if (share == 0 || (bytes < kAnyShareBytes && share < kLeastShare)) continue;
    if (share < last * kAnotherShare) continue;
    last = share;
    made.push_back(by_shares(algorithm, plain->schedule(), share));
  }
  return made;
}

std::vector<Candidate> Candidates::hybrids(Collective collective, int root) {
  std::vector<Candidate> all;
  if (facts_.hybrid.channels == 0 || facts_.num_ranks < 2 || !gains_by_hybrid(collective)) {
    return all;
  }
  // Each share of each algorithm is a schedule to be made when rates change, while calls run: so
  // only algorithms that no other one equals in all that the price of long data depends on.
  using Costs = std::array<double, 3>;
  const auto at_most = [](const Costs& a, const Costs& b) {
    return a[0] <= b[0] && a[1] <= b[1] && a[2] <= b[2];
  };
  std::vector<std::pair<std::string, Costs>> best;
  for (const std::string& algorithm : registered(collective, root)) {
    const ScheduleShape shape =
        ScheduleShape::of(*schedules_->get(algorithm, hybrid_request(collective, root)));
    const Costs costs = {shape.link_units, shape.work_units,
                         static_cast<double>(shape.longest_path)};
    if (std::ranges::any_of(best, [&](const auto& one) { return at_most(one.second, costs); })) {
      continue;
    }
    std::erase_if(best, [&](const auto& one) { return at_most(costs, one.second); });
    best.emplace_back(algorithm, costs);
  }
  for (const auto& [algorithm, costs] : best) {
    std::ranges::move(over_both_classes(algorithm, collective, root), std::back_inserter(all));
  }
  return all;
}

bool Candidates::scale_hybrid(double scale) {
  facts_.hybrid.host_scale = scale;
  bool changed = false;
  for (auto& [key, candidates] : made_) {
    const auto& [collective, root] = key;
    if (has_root(collective)) continue;
    const std::size_t before = std::erase_if(candidates, [](const Candidate& candidate) {
      return hybrid_channels_of(candidate.routed) > 0;
    });
    if (before == 0) continue;
    changed = true;
    std::ranges::move(hybrids(collective, root), std::back_inserter(candidates));
    // HYBRID=on, which left nothing else, has no share any more.
    if (candidates.empty()) candidates = made(collective, root, nullptr);
  }
  return changed;
}

Candidate Candidates::by_shares(const std::string& algorithm, schedule::Schedule weighted,
                                double share) const {
  // Weights are whole numbers: of so much in total.
  constexpr double kWhole = 10'000;
  const int channels = weighted.num_channels();
  const int hybrid = facts_.hybrid.channels;
  const auto each = [&](double of_all, int among) {
    return std::max(1, static_cast<int>(std::lround(of_all * kWhole / among)));
  };
  for (int c = 0; c < channels && channels > hybrid; ++c) {
    weighted.weight[static_cast<std::size_t>(c)] =
        c < channels - hybrid ? each(1 - share, channels - hybrid) : each(share, hybrid);
  }
  const std::string name = "hybrid-" + algorithm;
  auto routed = std::make_shared<RoutedSchedule>();
  routed->algorithm = name;
  routed->checked =
      std::make_shared<const schedule::Checked>(schedule::Checked::from(std::move(weighted)));
  routed->hybrid_channels = hybrid;
  routed->hybrid_share = share;
  routed->hybrid_scale = facts_.hybrid.host_scale;
  const ScheduleShape shape = ScheduleShape::of(*routed->checked);
  routed->hybrid_units = std::max(shape.link_units, 1.0);
  routed->hybrid_hops = shape.longest_path;
  return Candidate{
      .algorithm = name, .channels = channels, .shape = shape, .routed = std::move(routed)};
}

bool Candidates::is_forced(Collective collective, int root) const {
  const auto forced = forced_.find(collective);
  if (forced == forced_.end()) return false;
  if (forced_plan(collective) != nullptr) return true;
  const schedule::Request request = request_of(collective, root, options_.channels.front());
  return std::ranges::any_of(schedule::algorithms(), [&](const schedule::Algorithm& row) {
    return row.name == forced->second.name && row.supports(request);
  });
}

const std::string* Candidates::forced_plan(Collective collective) const {
  const auto forced = forced_.find(collective);
  const bool names_plan = forced != forced_.end() && facts_.num_ranks > 1 &&
                          plans_serve(forced->second.name, collective);
  return names_plan ? &forced->second.name : nullptr;
}

std::vector<std::string> Candidates::registered(Collective collective, int root) const {
  if (is_forced(collective, root)) return {forced_.at(collective).name};
  if (const auto forced = forced_.find(collective);
      forced != forced_.end() && forced->second.for_this_operation && facts_.num_ranks > 1) {
    throw Error(
        Errc::kInvalidArgument, "setting ROPEWALK_ALGORITHM: \"{}\" cannot do {} over {} ranks{}",
        forced->second.name, name(collective), facts_.num_ranks, needs_of(forced->second.name));
  }
  const schedule::Request request = request_of(collective, root, options_.channels.front());
  const bool blocks = collective == Collective::kScatter || collective == Collective::kGather;
  std::vector<std::string> names;
  std::vector<std::string> dense;
  for (const schedule::Algorithm& row : schedule::algorithms()) {
    if (!row.supports(request) || (row.name == kBlockTree && blocks && !options_.block_trees)) {
      continue;
    }
    (all_pairs(row.name) ? dense : names).emplace_back(row.name);
  }
  if (names.empty() || facts_.num_ranks <= kAllPairsRanks) {
    names.insert(names.end(), dense.begin(), dense.end());
  }
  return names;
}

const std::vector<Candidate>& Candidates::get(Collective collective, int root) {
  const auto key = std::pair(collective, root_of(collective, root));
  if (const auto known = made_.find(key); known != made_.end()) return known->second;
  std::vector<Candidate> all = made(collective, key.second, nullptr);
  if (all.empty()) {
    throw Error(Errc::kInvalidUsage, "no algorithm for {} over {} ranks", name(collective),
                facts_.num_ranks);
  }
  return made_.emplace(key, std::move(all)).first->second;
}

std::shared_ptr<MachineCost> Candidates::cost_of(const schedule::Checked& checked,
                                                 const schedule::Routes& routes) {
  MachineCostOptions options;
  options.message_seconds = options_.message_seconds;
  if (facts_.lag_slots > 0) {
    options.slots = static_cast<int>(facts_.lag_slots);
    options.lags = true;
  }
  return std::make_shared<MachineCost>(on_machine_->routes, checked.schedule(),
                                       checked.report().longest_path, routes, options);
}

void Candidates::plan_in_background(PlansMadeHook made) {
  background_ = std::make_shared<Background>();
  const Lock lock(background_->mutex);
  background_->hook = std::move(made);
}

std::shared_ptr<const PlannedCandidates> Candidates::planned(Collective collective, int root,
                                                             bool forced) {
  PlansRequest request{collective, root, facts_.max_channels, facts_.lag_slots >= kLeastLagSlots};
  if (for_hosts_) {  // each channel once on each rail
    const int rails = std::max(1, static_cast<int>(facts_.rail_rates.size()));
    request.max_channels = std::max(1, facts_.max_channels / rails);
  }
  // An algorithm that a setting names has no temporary replacement.
  request.thorough = planning_ == Planning::kWait || forced;
  std::shared_ptr<const PlannedCandidates> plans =
      on_machine_->plans->get(on_machine_->machine, request, on_machine_->folder);
  if (request.thorough || plans->later.empty() || planning_ != Planning::kBackground ||
      background_ == nullptr) {
    return plans;
  }
  const auto key = std::pair(collective, root);
  {
    const Lock lock(background_->mutex);
    background_->entries[key] = {{{plans->later.begin(), plans->later.end()}, {}}, nullptr};
  }
  request.thorough = true;
  on_machine_->plans->get_later(
      on_machine_->shared_machine, request, on_machine_->folder,
      [shared = background_, key](std::shared_ptr<const PlannedCandidates> planned) {
        const Lock lock(shared->mutex);
        if (shared->hook == nullptr) return;
        Background::Entry& entry = shared->entries.at(key);
        entry.plans.state =
            planned == nullptr ? BackgroundPlans::State::kFailed : BackgroundPlans::State::kMade;
        const std::uint64_t digest = planned == nullptr ? 0 : digest_of(*planned);
        entry.made = std::move(planned);
        shared->hook(key.first, key.second, digest);
      });
  return plans;
}

void Candidates::adopt(Collective collective, int root) {
  const auto key = std::pair(collective, root_of(collective, root));
  std::vector<Candidate> all = later(collective, root);
  {
    const Lock lock(background_->mutex);
    background_->entries.at(key).plans.state = BackgroundPlans::State::kInUse;
    background_->entries.at(key).made = nullptr;
  }
  made_.insert_or_assign(key, std::move(all));
}

std::optional<BackgroundPlans> Candidates::background(Collective collective, int root) const {
  if (background_ == nullptr) return std::nullopt;
  const Lock lock(background_->mutex);
  const auto found = background_->entries.find({collective, root_of(collective, root)});
  if (found == background_->entries.end()) return std::nullopt;
  return found->second.plans;
}

std::vector<Candidate> Candidates::later(Collective collective, int root) {
  const auto key = std::pair(collective, root_of(collective, root));
  std::shared_ptr<const PlannedCandidates> plans;
  {
    const Lock lock(background_->mutex);
    plans = background_->entries.at(key).made;
  }
  RW_ASSERT(plans != nullptr);
  return made(collective, key.second, std::move(plans));
}

std::vector<Candidate> Candidates::made(Collective collective, int root,
                                        std::shared_ptr<const PlannedCandidates> plans) {
  std::vector<Candidate> all;
  std::vector<Candidate> without_routes;
  const std::string* plan = forced_plan(collective);
  if (plan == nullptr) {
    for (const std::string& algorithm : registered(collective, root)) {
      for (const int channels : options_.channels) {
        const schedule::Request request = request_of(collective, root, channels);
        for (Candidate& candidate : over_rails(algorithm, request)) {
          if (machine_ != nullptr && facts_.num_ranks > 1) {
            try {
              candidate.cost =
                  cost_of(candidate.routed != nullptr ? *candidate.routed->checked
                                                      : *schedules_->get(algorithm, request),
                          {});
            } catch (const Error& error) {
              log::trace(log::kTuning, "{} cannot run {} on this machine: {}", name(collective),
                         algorithm, error.what());
              without_routes.push_back(std::move(candidate));
              continue;
            }
          }
          all.push_back(std::move(candidate));
        }
      }
    }
  }
  if (plan == nullptr) {
    std::vector<Candidate> over_both = hybrids(collective, root);
    if (hybrid_alone_ && !over_both.empty()) return over_both;
    all.insert(all.end(), over_both.begin(), over_both.end());
  }
  if (on_machine_ == nullptr) {
    if (plan == nullptr) return all;
    throw Error(Errc::kInvalidArgument,
                "setting ROPEWALK_ALGORITHM: \"{}\" is a plan for a machine, and none is known; "
                "the setting TOPOLOGY can name it",
                *plan);
  }
  if (plan != nullptr || (plans_unasked() && !is_forced(collective, root))) {
    if (plans == nullptr) plans = planned(collective, root, plan != nullptr);
    add_plans(all, *plans, plan);
    if (plan != nullptr && all.empty()) {
      const auto why = plans->refused.find(*plan);
      throw Error(Errc::kInvalidArgument, "setting ROPEWALK_ALGORITHM: no \"{}\" for {} on {}: {}",
                  *plan, name(collective), on_machine_->machine.topology().name(),
                  why == plans->refused.end() ? "not one of this machine's" : why->second);
    }
  }
  // A machine whose GPUs reach each other only through GPUs, without a plan: the model without a
  // machine must suffice.
  if (all.empty()) return without_routes;
  return all;
}

void Candidates::add_plans(std::vector<Candidate>& all, const PlannedCandidates& plans,
                           const std::string* plan) {
  for (const std::shared_ptr<const RoutedSchedule>& routed : plans.schedules) {
    if (plan != nullptr && routed->algorithm != *plan) continue;
    if (for_hosts_) {
      // Rings that differ by NICs, of which this machine has none.
      if (plan == nullptr && routed->algorithm.starts_with("plan-nics-")) continue;
      for (Candidate& each : for_hosts(*routed)) all.push_back(std::move(each));
      continue;
    }
    if (plan == nullptr && options_.by_peer_access && beside_fabric(routed->algorithm)) continue;
    ScheduleShape shape = ScheduleShape::of(*routed->checked, facts_.host_of_rank);
    shape.host_path_units = units_over(routed->checked->schedule(), facts_.host_path_pairs);
    all.push_back({.algorithm = routed->algorithm,
                   .channels = shape.channels,
                   .shape = shape,
                   .routed = routed,
                   .cost = cost_of(*routed->checked, routed->routes)});
  }
}

std::vector<Candidate> Candidates::for_hosts(const RoutedSchedule& planned) const {
  std::vector<Candidate> made;
  const auto add = [&](plan::NicRule rule,
                       const std::shared_ptr<const schedule::Checked>& checked) {
    const std::vector<int>& weights = checked->schedule().weight;
    ScheduleShape shape = ScheduleShape::of(*checked, facts_.host_of_rank);
    shape.heaviest = *std::ranges::max_element(weights) * static_cast<double>(weights.size()) /
                     std::accumulate(weights.begin(), weights.end(), 0.0);
    // No routes: links between hosts are those of the ranks, whatever nodes the plan went through.
    made.push_back({.algorithm = planned.algorithm,
                    .nic_rule = rule,
                    .channels = shape.channels,
                    .shape = shape,
                    .routed = std::make_shared<const RoutedSchedule>(
                        RoutedSchedule{planned.algorithm, checked, {}}),
                    .nics = nics_of(shape, checked)});
  };
  if (facts_.rail_rates.size() < 2) {
    add(plan::NicRule::kBalanced, planned.checked);
    return made;
  }
  add(plan::NicRule::kBalanced,
      std::make_shared<const schedule::Checked>(schedule::Checked::from(
          spread_over_rails(planned.checked->schedule(), facts_.rail_rates))));
  if (nic_hosts_ != nullptr && planned.checked->schedule().num_channels() > 1) {
    add(plan::NicRule::kLeastUsed, planned.checked);
  }
  return made;
}

std::shared_ptr<NicCost> Candidates::nics_of(
    const ScheduleShape& shape, std::shared_ptr<const schedule::Checked> checked) const {
  if (nic_hosts_ == nullptr) return nullptr;
  return std::make_shared<NicCost>(nic_hosts_, std::move(checked), shape.leaving_units,
                                   shape.longest_path - shape.local_path, facts_.lag_slots);
}

bool Candidates::plans() const noexcept { return facts_.num_ranks > 1 && plans_unasked(); }

Candidate Candidates::given(const std::shared_ptr<const schedule::Checked>& checked) const {
  ScheduleShape shape = ScheduleShape::of(*checked, facts_.host_of_rank);
  shape.host_path_units = units_over(checked->schedule(), facts_.host_path_pairs);
  return {
      .algorithm = kGivenSchedule,
      .channels = shape.channels,
      .shape = shape,
      .routed = std::make_shared<const RoutedSchedule>(RoutedSchedule{kGivenSchedule, checked, {}}),
      .nics = nics_of(shape, checked)};
}

std::shared_ptr<const schedule::Checked> Candidates::schedule(Collective collective, int root,
                                                              const Candidate& candidate,
                                                              int channels) {
  if (candidate.routed == nullptr) {
    return schedules_->get(candidate.algorithm, request_of(collective, root, channels));
  }
  const schedule::Checked& own = *candidate.routed->checked;
  const int times = channels / own.schedule().num_channels();
  if (times <= 1) return candidate.routed->checked;
  return std::make_shared<const schedule::Checked>(
      schedule::Checked::from(schedule::repeated(own.schedule(), times), own.slots()));
}

}  // namespace ropewalk::tune
