// The schedules that may serve an operation: those of the registry (schedule/compile.h), the plans
// for the machine (planned_candidates.h), or the one that the user or a setting names.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/settings.h"
#include "core/types.h"
#include "plan/nic_assignment.h"
#include "schedule/checked.h"
#include "schedule/compile.h"
#include "topology/topology.h"
#include "tune/cost_model.h"
#include "tune/forced_algorithms.h"
#include "tune/group_facts.h"
#include "tune/hybrid_controller.h"
#include "tune/kept_plans.h"
#include "tune/machine_cost.h"
#include "tune/nic_rounds.h"
#include "tune/routed_schedule.h"
#include "tune/when_needed.h"

namespace ropewalk::tune {

/// One algorithm's schedule, with all that prices it.
struct Candidate {
  std::string algorithm;
  /// Of channels and rails (link/rails.h), where there are several of both. Balanced: the data by
  /// the rails' rates. Least used: the rail that has the fewest channels takes the next one,
  /// however fast it is, and channels keep the data that they have on one rail.
  plan::NicRule nic_rule = plan::NicRule::kBalanced;
  int channels = 1;  ///< as asked of the compiler; a schedule may have more
  ScheduleShape shape;
  std::shared_ptr<const RoutedSchedule> routed{};  ///< null for the registry's
  std::shared_ptr<MachineCost> cost{};             ///< where there is a machine
  std::shared_ptr<NicCost> nics{};                 ///< where what NICs between hosts carry is known
};

/// What stands in for plans that take long to make (setting PLANNING).
enum class Planning {
  kBackground,  ///< other candidates, until adopt()
  kWait,        ///< get() makes these plans, however long that takes
  kBrief,       ///< other candidates, for good
};

/// What became of an operation's plans that take long to make.
struct BackgroundPlans {
  std::vector<std::string> algorithms;  ///< that they may add
  enum class State { kUnderWay, kMade, kInUse, kFailed };
  State state = State::kUnderWay;
};

struct CandidateOptions {
  /// Numbers of channels to compile the registry's algorithms with.
  std::vector<int> channels = {1};
  double message_seconds = 0;  ///< MachineCostOptions::message_seconds
  /// Host memory: plans for the hosts of a group whose machine nobody described (hosts_machine.h)
  /// are candidates where it is known what the hosts' NICs carry; elsewhere ALGORITHM may name
  /// them.
  bool plans_for_hosts = false;
  /// Messages take NVLink wherever it joins two GPUs: plans over other links beside it are no
  /// candidates but where ALGORITHM names one.
  bool by_peer_access = false;
  /// Scatters and gathers may take binary trees, unnamed: measured for host memory alone.
  bool block_trees = false;
};

/// Threads: one at a time.
class Candidates {
 public:
  /// @param machine its gpus()[r] is that of rank r; null where no plans can be made. Where there
  ///        is one, plans for it are candidates
  /// @param plans where plans are kept; null: here
  Candidates(const Config& config, GroupFacts facts, CandidateOptions options,
             schedule::CheckedSchedules& schedules,
             std::shared_ptr<const topology::Topology> machine, std::shared_ptr<KeptPlans> plans);
  ~Candidates();
  Candidates(Candidates&&) noexcept;
  Candidates& operator=(Candidates&&) = delete;
  Candidates(const Candidates&) = delete;
  Candidates& operator=(const Candidates&) = delete;

  /// In an order that is equal on all ranks. Never empty. `root` matters for rooted operations.
  /// @throws Error kInvalidArgument when the setting ALGORITHM names for this operation what cannot
  /// do it; kInvalidUsage when nothing can
  const std::vector<Candidate>& get(Collective collective, int root);

  /// With Planning::kBackground: the planning thread calls `made` when the plans for an operation
  /// are ready, with a digest of them, or 0 if there will be none. It must not call this object.
  /// Without it nothing is planned in the background.
  using PlansMadeHook = std::function<void(Collective, int root, std::uint64_t digest)>;
  void plan_in_background(PlansMadeHook made);
  /// From now on these plans are candidates: get() returns others.
  /// @pre `made` was called for them
  void adopt(Collective collective, int root);
  /// nullopt where no plans take long, or none were asked for.
  [[nodiscard]] std::optional<BackgroundPlans> background(Collective collective, int root) const;
  /// As get() will be after adopt().
  /// @pre background() is kMade
  [[nodiscard]] std::vector<Candidate> later(Collective collective, int root);

  /// The host's links beside those between GPUs are so many times as fast as was thought: get()
  /// returns others in their place.
  /// @return whether any candidate has changed
  bool scale_hybrid(double scale);

  /// The user's schedule as a candidate.
  [[nodiscard]] Candidate given(const std::shared_ptr<const schedule::Checked>& checked) const;

  /// The schedule to run: the candidate's schedule with this number of channels, a multiple of its
  /// own.
  [[nodiscard]] std::shared_ptr<const schedule::Checked> schedule(Collective collective, int root,
                                                                  const Candidate& candidate,
                                                                  int channels);

  /// Whether the setting ALGORITHM names an algorithm for this operation that can do it.
  [[nodiscard]] bool is_forced(Collective collective, int root) const;
  [[nodiscard]] const GroupFacts& facts() const noexcept { return facts_; }
  /// Whether plans are candidates without being named, now or later.
  [[nodiscard]] bool plans() const noexcept;
  /// The machine, or null; null too where plans are for hosts that nobody described.
  [[nodiscard]] const topology::Topology* machine() const noexcept { return machine_.get(); }

 private:
  struct OnMachine;
  [[nodiscard]] schedule::Request request_of(Collective collective, int root,
                                             int channels) const noexcept;
  // Of schedules whose channels are shared out to both classes of links.
  [[nodiscard]] schedule::Request hybrid_request(Collective collective, int root) const noexcept;
  // What goes over pairs of facts.host_path_pairs, whatever the number of channels.
  [[nodiscard]] double host_path_units(const std::string& algorithm, schedule::Request request,
                                       const schedule::Checked& compiled);
  // An algorithm's schedule, by weight where rails are unequal; where prices tell them apart, by
  // both rules for NICs.
  // @return nothing when it has more channels than there are links
  [[nodiscard]] std::vector<Candidate> over_rails(const std::string& algorithm,
                                                  const schedule::Request& request);
  // An algorithm's schedule over both classes of links of GPUs, by several shares: one suits the
  // data's length.
  // @return nothing where only one class may be used
  [[nodiscard]] std::vector<Candidate> over_both_classes(const std::string& algorithm,
                                                         Collective collective, int root);
  // With `share` of the data on the last channels.
  [[nodiscard]] Candidate by_shares(const std::string& algorithm, schedule::Schedule weighted,
                                    double share) const;
  // All of those.
  [[nodiscard]] std::vector<Candidate> hybrids(Collective collective, int root);
  [[nodiscard]] std::vector<std::string> registered(Collective collective, int root) const;
  // @param plans those to take; null: makes them
  [[nodiscard]] std::vector<Candidate> made(Collective collective, int root,
                                            std::shared_ptr<const PlannedCandidates> plans);
  // Plans that are made at once; the others are planned in the background.
  [[nodiscard]] std::shared_ptr<const PlannedCandidates> planned(Collective collective, int root,
                                                                 bool forced);
  // The plans as candidates: `plan` alone, if given.
  void add_plans(std::vector<Candidate>& all, const PlannedCandidates& plans,
                 const std::string* plan);
  // Of hosts: each channel on all rails, and where prices tell them apart, on one each; priced as
  // shapes are.
  [[nodiscard]] std::vector<Candidate> for_hosts(const RoutedSchedule& planned) const;
  // Whether plans are candidates where no setting names one.
  [[nodiscard]] bool plans_unasked() const noexcept {
    return machine_ != nullptr || (for_hosts_ && nic_hosts_ != nullptr);
  }
  // Null where what NICs carry is not known.
  [[nodiscard]] std::shared_ptr<NicCost> nics_of(
      const ScheduleShape& shape, std::shared_ptr<const schedule::Checked> checked) const;
  // Where ALGORITHM names a plan for this.
  [[nodiscard]] const std::string* forced_plan(Collective collective) const;
  [[nodiscard]] std::shared_ptr<MachineCost> cost_of(const schedule::Checked& checked,
                                                     const schedule::Routes& routes);

  // Shared with the thread that plans.
  struct Background;

  GroupFacts facts_;
  CandidateOptions options_;
  schedule::CheckedSchedules* schedules_;
  std::shared_ptr<const topology::Topology> machine_;
  WhenNeeded<OnMachine> on_machine_;  // where there is a machine of at least two ranks
  bool for_hosts_ = false;            // that is hosts_machine(), which prices nothing
  std::shared_ptr<const NicHosts> nic_hosts_;
  Planning planning_ = Planning::kBrief;
  std::vector<int> host_of_rank_;  // schedule::Request's
  bool hybrid_alone_ = false;      // setting HYBRID: on
  std::shared_ptr<Background> background_;
  std::map<Collective, ForcedAlgorithm> forced_;
  std::map<std::pair<Collective, int>, std::vector<Candidate>> made_;
};

}  // namespace ropewalk::tune
