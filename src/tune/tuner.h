// Which algorithm, in which form: of the candidates (candidates.h) the one whose price (pricing.h)
// is lowest. The same for calls on host memory and on GPUs.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/settings.h"
#include "core/types.h"
#include "schedule/checked.h"
#include "tune/candidates.h"
#include "tune/choice.h"
#include "tune/device_pricing.h"
#include "tune/group_facts.h"
#include "tune/pricing.h"

namespace ropewalk::tune {

/// Threads: one at a time.
class Tuner {
 public:
  Tuner(Candidates candidates, std::unique_ptr<Pricing> pricing);

  /// The choice for units of `unit_bytes`.
  /// @throws Error as Candidates::get()
  [[nodiscard]] std::shared_ptr<const Choice> choose(Collective collective, int root,
                                                     std::size_t unit_bytes);

  /// Every candidate, priced for units of `unit_bytes` exactly, the cheapest first.
  [[nodiscard]] std::vector<Choice> priced(Collective collective, int root, std::size_t unit_bytes);

  /// This schedule serves its collective, from its root, from now on.
  void use(const std::shared_ptr<const schedule::Checked>& given);
  void forget();
  /// Whether such a schedule serves the operation.
  [[nodiscard]] bool is_given(Collective collective, int root) const {
    return given_for(collective, root) != nullptr;
  }

  /// Whether the setting ALGORITHM names an algorithm for this operation that can do it.
  [[nodiscard]] bool is_forced(Collective collective, int root) const {
    return candidates_.is_forced(collective, root);
  }
  /// As Candidates'.
  void plan_in_background(Candidates::PlansMadeHook made) {
    candidates_.plan_in_background(std::move(made));
  }
  [[nodiscard]] std::optional<BackgroundPlans> background(Collective collective, int root) const {
    return candidates_.background(collective, root);
  }
  /// Choices for the operation are made again, with the plans that were made in the background.
  void adopt(Collective collective, int root);
  /// As Candidates'. Choices are made again. @return whether any may be another
  bool scale_hybrid(double scale);
  /// What choose() will return after adopt(), but its index and schedule.
  /// @pre background() is kMade
  [[nodiscard]] Choice later(Collective collective, int root, std::size_t unit_bytes);

  /// What the links of `machine` allow each choice, for those that were priced without a machine:
  /// Choice::algbw_gbps and limiting_links, by the routes that messages take without a plan. What
  /// cannot run there keeps none, nor what goes over two classes of links at once.
  /// @param machine its gpus()[r] is that of rank r
  void add_limits(const topology::Topology& machine, Collective collective, int root,
                  std::span<Choice> choices);

  /// As Candidates'.
  [[nodiscard]] bool plans() const noexcept { return candidates_.plans(); }
  /// The machine, or null.
  [[nodiscard]] const topology::Topology* machine() const noexcept { return candidates_.machine(); }

  /// For a message of this number of bytes between two ranks.
  [[nodiscard]] Choice message(std::size_t bytes) const { return pricing_->message(bytes); }

 private:
  static constexpr std::size_t kBuckets = 65;  // from a power of two to the next
  using Choices = std::array<std::shared_ptr<const Choice>, kBuckets>;
  [[nodiscard]] std::shared_ptr<const Choice> for_bucket(Collective collective, int root,
                                                         std::size_t unit_bytes);
  [[nodiscard]] Choice cheapest(Collective collective, int root, std::size_t unit_bytes);
  [[nodiscard]] const Candidate* given_for(Collective collective, int root) const;
  void set_schedule(Choice& choice, Collective collective, int root, const Candidate& candidate);
  // Choice::others.
  void add_others(Choice& choice, Collective collective, int root, std::size_t unit_bytes);
  void forget_choices();

  Candidates candidates_;
  std::unique_ptr<Pricing> pricing_;
  int next_index_ = 0;
  std::array<Choices, kNumCollectives> rootless_;
  std::map<std::pair<Collective, int>, Choices> rooted_;
  std::map<Collective, Candidate> given_;
  // The choices so far: collective, root, algorithm, channels, rule for NICs,
  // RoutedSchedule::hybrid_share.
  std::map<std::tuple<Collective, int, std::string, int, plan::NicRule, double>,
           std::shared_ptr<const schedule::Checked>>
      chosen_;
};

/// For host memory.
/// @param machine, plans as for Candidates
Tuner host_tuner(const Config& config, const GroupFacts& facts, const MachineConstants& constants,
                 schedule::CheckedSchedules& schedules,
                 std::shared_ptr<const topology::Topology> machine = nullptr,
                 std::shared_ptr<KeptPlans> plans = nullptr);

/// For GPUs. Of `facts` counts how many ranks there are, and on which hosts with which rails.
/// @param machine, plans as for Candidates
Tuner device_tuner(const Config& config, GroupFacts facts, const DeviceLimits& limits,
                   const DeviceConstants& constants, schedule::CheckedSchedules& schedules,
                   std::shared_ptr<const topology::Topology> machine = nullptr,
                   std::shared_ptr<KeptPlans> plans = nullptr);

}  // namespace ropewalk::tune
