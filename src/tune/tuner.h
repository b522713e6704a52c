// Which algorithm, how many channels, which chunk: the checked schedule that the cost model
// (cost_model.h) finds fastest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/settings.h"
#include "core/types.h"
#include "schedule/checked.h"
#include "schedule/compile.h"
#include "topology/topology.h"
#include "tune/cost_model.h"
#include "tune/kept_plans.h"
#include "tune/machine_cost.h"
#include "tune/routed_schedule.h"

namespace ropewalk::tune {

/// What all ranks of a communicator know alike. Choices follow from it and from the call alone, so
/// all ranks choose alike without a word.
struct GroupFacts {
  int num_ranks = 1;
  int num_hosts = 1;
  int max_ranks_per_host = 1;
  double ranks_per_processor = 1;  ///< at the most crowded place; at most 1: none is shared
  bool all_by_address = false;     ///< every pair of ranks can copy from each other's memory
  bool same_process = false;       ///< all ranks are threads of one process
  std::size_t slot_bytes = 32768;
  /// Chunks that a link holds, where links take so long that steps which receive lag behind those
  /// which send (schedule/lags.h); 0: steps run round by round.
  std::uint32_t lag_slots = 0;
  int max_channels = 16;          ///< links exist for channels below this one
  std::vector<int> host_of_rank;  ///< where there are several hosts
  /// Where each host has several NICs: what each rail (link/rails.h) carries, bytes/s, the fastest
  /// first. Channel c goes over rail c % rail_rates.size().
  std::vector<double> rail_rates;
};

struct Choice {
  int index = 0;  ///< counts the distinct choices of this tuner
  std::string algorithm;
  int channels = 1;
  std::size_t chunk_bytes = 0;          ///< largest chunk that is staged; at most a slot
  std::size_t address_bytes = 0;        ///< smallest chunk that goes by address
  std::size_t address_chunk_bytes = 0;  ///< chunk where every chunk of a call goes by address
  std::size_t share_bytes = 0;          ///< smallest chunk that its sender may help to copy
  double predicted_seconds = 0;
  /// What runs where the algorithm is none of the registry's (schedule/compile.h) but was made for
  /// this machine; else null.
  std::shared_ptr<const RoutedSchedule> routed;
  /// On a machine (else 0 and none): GB/s in the limit of long messages as nccl-tests counts them,
  /// and the links that limit it (indices into the machine's links).
  double algbw_gbps = 0;
  std::vector<LinkShare> limiting_links;
};

/// Threads: one at a time.
class Tuner {
 public:
  /// @param machine its gpus()[r] is that of rank r; null where no plans can be made. Where there
  /// is
  ///        one, plans for it are candidates, and machine_cost.h prices all candidates
  /// @param plans where plans are kept; null: here
  Tuner(const Config& config, const GroupFacts& facts, const MachineConstants& constants,
        schedule::CheckedSchedules& schedules,
        std::shared_ptr<const topology::Topology> machine = nullptr,
        std::shared_ptr<KeptPlans> plans = nullptr);
  ~Tuner();
  Tuner(const Tuner&) = delete;
  Tuner& operator=(const Tuner&) = delete;

  /// The choice for units of `unit_bytes`. The reference stays valid.
  /// @throws Error kInvalidArgument when the setting ALGORITHM names a plan that there is not
  const Choice& choose(Collective collective, int root, std::size_t unit_bytes);

  /// Every algorithm that can do this, priced for units of `unit_bytes` exactly, the cheapest
  /// first. choose() prices the middle of a power of two, so that its choice may be another one.
  [[nodiscard]] std::vector<Choice> priced(Collective collective, int root, std::size_t unit_bytes);

  /// Whether the setting ALGORITHM names an algorithm for this operation that can do it.
  [[nodiscard]] bool is_forced(Collective collective, int root);

  /// The machine, or null.
  [[nodiscard]] const topology::Topology* machine() const noexcept { return machine_.get(); }

  /// Chunks of sends and receives.
  [[nodiscard]] const Choice& point_to_point() const noexcept { return point_to_point_; }

 private:
  static constexpr std::size_t kBuckets = 64;  // powers of two
  struct OnMachine;
  // One algorithm's schedule, with all that prices it.
  struct Candidate {
    std::string algorithm;
    int channels;  // as asked of the compiler; a schedule may have more
    ScheduleShape shape;
    std::shared_ptr<const RoutedSchedule> routed;
    std::unique_ptr<MachineCost> cost;  // where there is a machine
  };
  using Candidates = std::vector<Candidate>;
  // The best chunks of one algorithm.
  [[nodiscard]] Choice priced(Candidate& candidate, std::size_t unit_bytes) const;
  [[nodiscard]] schedule::Request request_of(Collective collective, int root,
                                             int channels) const noexcept;
  [[nodiscard]] std::vector<int> numbers_of_channels() const;
  // An algorithm's schedule, by weight where rails are unequal. @return nothing when it has more
  // channels than there are links
  [[nodiscard]] std::optional<Candidate> over_rails(const std::string& algorithm,
                                                    const schedule::Request& request);
  [[nodiscard]] Choice cheapest(Collective collective, int root, std::size_t unit_bytes);
  [[nodiscard]] std::vector<std::string> registered(Collective collective, int root);
  [[nodiscard]] Candidates& candidates(Collective collective, int root);
  [[nodiscard]] Candidates make_candidates(Collective collective, int root);
  // Where ALGORITHM names a plan for this.
  [[nodiscard]] const std::string* forced_plan(Collective collective) const;
  void set_chunks(Choice& choice) const;

  GroupFacts facts_;
  std::shared_ptr<const topology::Topology> machine_;
  std::unique_ptr<OnMachine> on_machine_;  // where there is a machine of at least two ranks
  CostContext context_;
  schedule::CheckedSchedules& schedules_;
  std::map<Collective, std::string> forced_;
  int given_channels_ = 0;  // 0: free
  std::size_t address_bytes_ = 0;
  Choice point_to_point_;
  int next_index_ = 0;
  std::array<std::array<std::unique_ptr<Choice>, kBuckets>, kNumCollectives> rootless_;
  std::map<std::pair<Collective, int>, std::array<std::unique_ptr<Choice>, kBuckets>> rooted_;
  std::map<std::pair<Collective, int>, Candidates> candidates_;
};

}  // namespace ropewalk::tune
