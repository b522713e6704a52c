#include "tune/candidates.h"

#include <algorithm>
#include <filesystem>
#include <functional>
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

namespace ropewalk::tune {
namespace {

// Beyond this many ranks the schedules with a link between every two ranks are not considered where
// another one exists: their number of links, and the time to check them, grow with the square.
constexpr int kAllPairsRanks = 32;
// A plan's all-reduce that relies on lags may send two chunks over a link in a round, up and down.
constexpr std::uint32_t kLeastLagSlots = 4;

bool all_pairs(std::string_view algorithm) {
  return algorithm == "one_shot" || algorithm == "two_shot" || algorithm == "direct";
}

// The paths of schedules are walked for so many ranks, message by message.
constexpr int kMostSplitRanks = 256;

bool plans_serve(Collective collective) {
  const auto& planned = plan::planned_collectives();
  return std::find(planned.begin(), planned.end(), collective) != planned.end();
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

int root_of(Collective collective, int root) { return has_root(collective) ? root : 0; }

}  // namespace

struct Candidates::Background {
  Mutex mutex;  // held while `hook` is called
  PlansMadeHook hook RW_GUARDED_BY(mutex);
  Price price;  // does not change
  struct Entry {
    BackgroundPlans plans;
    std::vector<Candidate> made;
  };
  std::map<std::pair<Collective, int>, Entry> entries RW_GUARDED_BY(mutex);
};

struct Candidates::OnMachine {
  OnMachine(const topology::Topology& found, std::shared_ptr<KeptPlans> kept, std::string where)
      : machine(std::make_shared<const PlannedMachine>(found)),
        routes(machine->topology()),
        plans(kept == nullptr ? std::make_shared<KeptPlans>() : std::move(kept)),
        folder(std::move(where)) {}
  std::shared_ptr<const PlannedMachine> machine;
  DefaultRoutes routes;
  std::shared_ptr<KeptPlans> plans;
  std::string folder;
};

// What candidates follow from. Immutable: the thread that plans makes candidates too.
class Candidates::Maker {
 public:
  Maker(GroupFacts facts, CandidateOptions options, schedule::CheckedSchedules& schedules,
        std::shared_ptr<const topology::Topology> machine,
        std::map<Collective, ForcedAlgorithm> forced)
      : facts_(std::move(facts)),
        options_(std::move(options)),
        schedules_(schedules),
        machine_(std::move(machine)),
        forced_(std::move(forced)) {}

  [[nodiscard]] const GroupFacts& facts() const noexcept { return facts_; }
  [[nodiscard]] const topology::Topology* machine() const noexcept { return machine_.get(); }
  [[nodiscard]] bool is_forced(Collective collective, int root) const;
  // Where ALGORITHM names a plan for this.
  [[nodiscard]] const std::string* forced_plan(Collective collective) const;
  // @param plans  null: none
  // @param routes  where there are plans
  [[nodiscard]] std::vector<Candidate> make(Collective collective, int root,
                                            const PlannedCandidates* plans,
                                            DefaultRoutes* routes) const;
  [[nodiscard]] std::shared_ptr<const schedule::Checked> registered(const std::string& algorithm,
                                                                    Collective collective, int root,
                                                                    int channels) const {
    return schedules_.get(algorithm, request_of(collective, root, channels));
  }

 private:
  [[nodiscard]] schedule::Request request_of(Collective collective, int root,
                                             int channels) const noexcept {
    return {collective, facts_.num_ranks, root_of(collective, root), channels, facts_.ring_order};
  }
  // An algorithm's schedule, by weight where rails are unequal. @return nothing when it has more
  // channels than there are links
  [[nodiscard]] std::optional<Candidate> over_rails(const std::string& algorithm,
                                                    const schedule::Request& request) const;
  [[nodiscard]] std::vector<std::string> names(Collective collective, int root) const;
  [[nodiscard]] ScheduleShape shape_of(const schedule::Checked& checked) const;
  [[nodiscard]] std::shared_ptr<MachineCost> cost_of(DefaultRoutes& machine_routes,
                                                     const schedule::Checked& checked,
                                                     const schedule::Routes& routes) const;
  [[nodiscard]] Candidate planned(const std::shared_ptr<const RoutedSchedule>& routed,
                                  DefaultRoutes& routes) const;

  GroupFacts facts_;
  CandidateOptions options_;
  schedule::CheckedSchedules& schedules_;
  std::shared_ptr<const topology::Topology> machine_;
  std::map<Collective, ForcedAlgorithm> forced_;
};

Candidates::Candidates(const Config& config, GroupFacts facts, CandidateOptions options,
                       schedule::CheckedSchedules& schedules,
                       std::shared_ptr<const topology::Topology> machine,
                       std::shared_ptr<KeptPlans> plans) {
  const bool for_hosts = machine == nullptr && options.plans_for_hosts && worth_planning(facts);
  maker_ = std::make_shared<const Maker>(std::move(facts), std::move(options), schedules,
                                         std::move(machine),
                                         forced_algorithms(config.text(Setting::kAlgorithm)));
  const bool on_machine = maker_->machine() != nullptr && maker_->facts().num_ranks > 1;
  if (!on_machine && !for_hosts) return;
  const std::string& planning = config.text(Setting::kPlanning);
  if (planning == "background") planning_ = Planning::kBackground;
  if (planning == "wait") planning_ = Planning::kWait;
  const bool keeps = config.flag(Setting::kTune);
  const std::filesystem::path file = keeps ? tuning_file(config) : std::string();
  on_machine_ = [maker = maker_, plans = std::move(plans), folder = file.parent_path().string()] {
    const topology::Topology* given = maker->machine();
    return std::make_unique<OnMachine>(
        given != nullptr ? *given : hosts_machine(maker->facts().host_of_rank), plans, folder);
  };
}

Candidates::~Candidates() {
  if (background_ == nullptr) return;
  const Lock lock(background_->mutex);
  background_->hook = nullptr;
}
Candidates::Candidates(Candidates&&) noexcept = default;

const GroupFacts& Candidates::facts() const noexcept { return maker_->facts(); }

const topology::Topology* Candidates::machine() const noexcept { return maker_->machine(); }

bool Candidates::is_forced(Collective collective, int root) const {
  return maker_->is_forced(collective, root);
}

// ---- making them ------------------------------------------------------------------------

ScheduleShape Candidates::Maker::shape_of(const schedule::Checked& checked) const {
  ScheduleShape shape = ScheduleShape::of(checked);
  shape.host_path_units = units_over(checked.schedule(), facts_.host_path_pairs);
  if (facts_.host_of_rank.empty()) return shape;
  // Of many ranks all are on several hosts, and this would take long.
  if (facts_.max_ranks_per_host > 1 && facts_.num_ranks <= kMostSplitRanks) {
    split_by_hosts(shape, checked.schedule(), facts_.host_of_rank);
  } else {
    shape.leaving_host = leaving_host(checked.schedule(), facts_.host_of_rank);
  }
  return shape;
}

std::optional<Candidate> Candidates::Maker::over_rails(const std::string& algorithm,
                                                       const schedule::Request& request) const {
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
  return Candidate{algorithm, request.channels, shape_of(*checked), std::move(own), nullptr};
}

bool Candidates::Maker::is_forced(Collective collective, int root) const {
  const auto forced = forced_.find(collective);
  if (forced == forced_.end()) return false;
  if (forced_plan(collective) != nullptr) return true;
  const schedule::Request request = request_of(collective, root, options_.channels.front());
  return std::ranges::any_of(schedule::algorithms(), [&](const schedule::Algorithm& row) {
    return row.name == forced->second.name && row.supports(request);
  });
}

const std::string* Candidates::Maker::forced_plan(Collective collective) const {
  const auto forced = forced_.find(collective);
  const bool names_plan = forced != forced_.end() && facts_.num_ranks > 1 &&
                          plans_serve(forced->second.name, collective);
  return names_plan ? &forced->second.name : nullptr;
}

std::vector<std::string> Candidates::Maker::names(Collective collective, int root) const {
  if (is_forced(collective, root)) return {forced_.at(collective).name};
  if (const auto forced = forced_.find(collective);
      forced != forced_.end() && forced->second.for_this_operation && facts_.num_ranks > 1) {
    throw Error(Errc::kInvalidArgument,
                "setting ROPEWALK_ALGORITHM: \"{}\" cannot do {} over {} ranks",
                forced->second.name, name(collective), facts_.num_ranks);
  }
  const schedule::Request request = request_of(collective, root, options_.channels.front());
  std::vector<std::string> found;
  std::vector<std::string> dense;
  for (const schedule::Algorithm& row : schedule::algorithms()) {
    if (!row.supports(request)) continue;
    (all_pairs(row.name) ? dense : found).emplace_back(row.name);
  }
  if (found.empty() || facts_.num_ranks <= kAllPairsRanks) {
    found.insert(found.end(), dense.begin(), dense.end());
  }
  return found;
}

std::shared_ptr<MachineCost> Candidates::Maker::cost_of(DefaultRoutes& machine_routes,
                                                        const schedule::Checked& checked,
                                                        const schedule::Routes& routes) const {
  MachineCostOptions options;
  options.message_seconds = options_.message_seconds;
  if (facts_.lag_slots > 0) {
    options.slots = static_cast<int>(facts_.lag_slots);
    options.lags = true;
  }
  return std::make_shared<MachineCost>(machine_routes, checked.schedule(),
                                       checked.report().longest_path, routes, options);
}

// Links of hosts that were found are those that ranks have, whatever route a plan took.
Candidate Candidates::Maker::planned(const std::shared_ptr<const RoutedSchedule>& routed,
                                     DefaultRoutes& routes) const {
  const ScheduleShape shape = shape_of(*routed->checked);
  if (machine_ == nullptr) {
    return {routed->algorithm, shape.channels, shape,
            std::make_shared<const RoutedSchedule>(
                RoutedSchedule{routed->algorithm, routed->checked, {}}),
            nullptr};
  }
  return {routed->algorithm, shape.channels, shape, routed,
          cost_of(routes, *routed->checked, routed->routes)};
}

std::vector<Candidate> Candidates::Maker::make(Collective collective, int root,
                                               const PlannedCandidates* plans,
                                               DefaultRoutes* routes) const {
  std::vector<Candidate> all;
  std::vector<Candidate> without_routes;
  const std::string* plan = forced_plan(collective);
  if (plan == nullptr) {
    for (const std::string& algorithm : names(collective, root)) {
      for (const int channels : options_.channels) {
        const schedule::Request request = request_of(collective, root, channels);
        std::optional<Candidate> candidate = over_rails(algorithm, request);
        if (!candidate.has_value()) continue;
        if (machine_ != nullptr && routes != nullptr) {
          try {
            candidate->cost =
                cost_of(*routes,
                        candidate->routed != nullptr ? *candidate->routed->checked
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
  if (plans != nullptr) {
    for (const std::shared_ptr<const RoutedSchedule>& routed : plans->schedules) {
      if (plan == nullptr || routed->algorithm == *plan) all.push_back(planned(routed, *routes));
    }
  }
  if (plan != nullptr && all.empty()) {
    if (plans == nullptr) {
      throw Error(Errc::kInvalidArgument,
                  "setting ROPEWALK_ALGORITHM: \"{}\" is a plan for a machine, and none is known; "
                  "the setting TOPOLOGY can name it",
                  *plan);
    }
    const auto why = plans->refused.find(*plan);
    throw Error(Errc::kInvalidArgument, "setting ROPEWALK_ALGORITHM: no \"{}\" for {} on {}: {}",
                *plan, name(collective), machine_ != nullptr ? machine_->name() : "these hosts",
                why == plans->refused.end() ? "not one of this machine's" : why->second);
  }
  // A machine whose GPUs have no way to each other but through GPUs, and no plan: what is known of
  // links without a machine must do.
  if (all.empty()) return without_routes;
  return all;
}

// ---- those of an operation --------------------------------------------------------------

const std::vector<Candidate>& Candidates::get(Collective collective, int root) {
  const auto key = std::pair(collective, root_of(collective, root));
  if (const auto known = made_.find(key); known != made_.end()) return known->second;
  std::shared_ptr<const PlannedCandidates> plans;
  const bool names_plan = maker_->forced_plan(collective) != nullptr;
  if (!(on_machine_ == nullptr) && (names_plan || !is_forced(collective, root))) {
    plans = planned(collective, key.second, names_plan);
  }
  const bool routed = !(on_machine_ == nullptr) && (machine() != nullptr || plans != nullptr);
  std::vector<Candidate> all =
      maker_->make(collective, key.second, plans.get(), routed ? &on_machine_->routes : nullptr);
  if (all.empty()) {
    throw Error(Errc::kInvalidUsage, "no algorithm for {} over {} ranks", name(collective),
                facts().num_ranks);
  }
  return made_.emplace(key, std::move(all)).first->second;
}

void Candidates::plan_in_background(PlansMadeHook made, Price price) {
  background_ = std::make_shared<Background>();
  background_->price = std::move(price);
  const Lock lock(background_->mutex);
  background_->hook = std::move(made);
}

std::shared_ptr<const PlannedCandidates> Candidates::planned(Collective collective, int root,
                                                             bool forced) {
  PlansRequest request{collective, root, facts().max_channels, facts().lag_slots >= kLeastLagSlots};
  // What a setting names cannot be replaced meanwhile.
  request.thorough = planning_ == Planning::kWait || forced;
  const bool later =
      !request.thorough && planning_ == Planning::kBackground && background_ != nullptr;
  std::shared_ptr<const PlannedCandidates> plans;
  BackgroundPlans waited_for;
  if (later && machine() == nullptr) {
    // What shapes do well enough does not wait for plans, however short.
    if (!plans_serve(collective)) return nullptr;
    waited_for.algorithms = planned_names();
  } else {
    plans = on_machine_->plans->get(*on_machine_->machine, request, on_machine_->folder);
    if (!later || plans->later.empty()) return plans;
    waited_for.algorithms = {plans->later.begin(), plans->later.end()};
  }
  const auto key = std::pair(collective, root);
  {
    const Lock lock(background_->mutex);
    background_->entries[key] = {std::move(waited_for), {}};
  }
  request.thorough = true;
  on_machine_->plans->get_later(
      on_machine_->machine, request, on_machine_->folder,
      [shared = background_, maker = maker_, machine = on_machine_->machine,
       key](std::shared_ptr<const PlannedCandidates> planned) {
        std::vector<Candidate> made;
        if (planned != nullptr) {
          try {
            DefaultRoutes routes(machine->topology());
            made = maker->make(key.first, key.second, planned.get(), &routes);
            if (shared->price) shared->price(made);
          } catch (const Error& error) {
            if (error.code() == Errc::kInterrupted) return;  // the process ends
            log::warn("plans for {} cannot be used: {}", name(key.first), error.what());
            planned = nullptr;
          } catch (const std::exception& error) {
            log::warn("plans for {} cannot be used: {}", name(key.first), error.what());
            planned = nullptr;
          }
        }
        const Lock lock(shared->mutex);
        if (shared->hook == nullptr) return;
        Background::Entry& entry = shared->entries.at(key);
        entry.plans.state =
            planned == nullptr ? BackgroundPlans::State::kFailed : BackgroundPlans::State::kMade;
        entry.made = std::move(made);
        shared->hook(key.first, key.second, planned == nullptr ? 0 : digest_of(*planned));
      });
  return plans;
}

void Candidates::adopt(Collective collective, int root) {
  const auto key = std::pair(collective, root_of(collective, root));
  const Lock lock(background_->mutex);
  Background::Entry& entry = background_->entries.at(key);
  RW_ASSERT(!entry.made.empty());
  entry.plans.state = BackgroundPlans::State::kInUse;
  made_.insert_or_assign(key, std::move(entry.made));
}

std::optional<BackgroundPlans> Candidates::background(Collective collective, int root) const {
  if (background_ == nullptr) return std::nullopt;
  const Lock lock(background_->mutex);
  const auto found = background_->entries.find({collective, root_of(collective, root)});
  if (found == background_->entries.end()) return std::nullopt;
  return found->second.plans;
}

std::vector<Candidate> Candidates::later(Collective collective, int root) {
  const Lock lock(background_->mutex);
  return background_->entries.at({collective, root_of(collective, root)}).made;
}

Candidate Candidates::given(std::shared_ptr<const schedule::Checked> checked) const {
  ScheduleShape shape = ScheduleShape::of(*checked);
  shape.host_path_units = units_over(checked->schedule(), facts().host_path_pairs);
  return {kGivenSchedule, shape.channels, shape,
          std::make_shared<const RoutedSchedule>(
              RoutedSchedule{kGivenSchedule, std::move(checked), {}}),
          nullptr};
}

std::shared_ptr<const schedule::Checked> Candidates::schedule(Collective collective, int root,
                                                              const Candidate& candidate,
                                                              int channels) {
  if (candidate.routed == nullptr) {
    return maker_->registered(candidate.algorithm, collective, root, channels);
  }
  const schedule::Checked& own = *candidate.routed->checked;
  const int times = channels / own.schedule().num_channels();
  if (times <= 1) return candidate.routed->checked;
  return std::make_shared<const schedule::Checked>(
      schedule::Checked::from(schedule::repeated(own.schedule(), times), own.slots()));
}

}  // namespace ropewalk::tune
