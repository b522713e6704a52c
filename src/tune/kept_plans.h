// A cache of plans: planning takes milliseconds to seconds, and jobs on the same machine need the
// same plans.
//
// In the process: for every communicator, so that ranks that are its threads plan once. On disk,
// beside the file of the measured constants: for later jobs. A plan from a file is compiled and
// checked like a new plan; an invalid file is ignored with one line in the log and written again.
// All ranks have the same plans whether they read or made them, since planning is deterministic.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "core/mutex.h"
#include "topology/topology.h"
#include "tune/planned_candidates.h"
#include "tune/planning_thread.h"

namespace ropewalk::tune {

/// Files of another version are ignored. Raise it whenever planning gives other plans.
inline constexpr int kKeptPlansVersion = 4;

/// A machine that plans are made for.
///
/// Threads: immutable.
class PlannedMachine {
 public:
  /// @param machine gpus()[r] is that of rank r
  explicit PlannedMachine(const topology::Topology& machine);
  [[nodiscard]] const topology::Topology& topology() const noexcept { return topology_; }
  /// Of all that the machine's JSON says.
  [[nodiscard]] std::uint64_t hash() const noexcept { return hash_; }

 private:
  topology::Topology topology_;
  std::uint64_t hash_;
};

/// A file with this body, on a line of its own, after the hash of it: a file that was cut or
/// changed is known as such.
std::string kept_plans_text(const std::string& body);

/// The file for a request: FOLDER/plans/HASH-all_reduce-0-16.json.
std::string plans_file(const std::string& folder, std::uint64_t machine_hash,
                       const PlansRequest& request);

/// Threads: any number at once. Those that ask for the same plans at the same time wait for one of
/// them to make them; others do not wait.
class KeptPlans {
 public:
  KeptPlans();
  /// @param folder on disk; "" keeps nothing there
  std::shared_ptr<const PlannedCandidates> get(const PlannedMachine& machine,
                                               const PlansRequest& request,
                                               const std::string& folder);

  /// The same by a thread in the background, one request after the other. It calls `done`, with
  /// nullptr if planning failed, which is logged; not if this object is destroyed before.
  using Done = std::function<void(std::shared_ptr<const PlannedCandidates>)>;
  void get_later(std::shared_ptr<const PlannedMachine> machine, const PlansRequest& request,
                 const std::string& folder, Done done);

  /// For tests: replaces make_plans() for plans that are not in the cache.
  using Planner = std::function<PlansMade(const topology::Topology&, const PlansRequest&)>;
  void plan_with(Planner planner);

 private:
  using Key = std::pair<std::uint64_t, PlansRequest>;
  struct Entry {
    Mutex making;  // held while plans are made
    std::shared_ptr<const PlannedCandidates> made RW_GUARDED_BY(making);
    std::uint64_t last_use = 0;  // guarded by mutex_ of the cache
  };
  static constexpr std::size_t kCapacity = 256;

  Mutex mutex_;
  std::map<Key, std::shared_ptr<Entry>> entries_ RW_GUARDED_BY(mutex_);
  std::uint64_t uses_ RW_GUARDED_BY(mutex_) = 0;
  Planner planner_ RW_GUARDED_BY(mutex_);
  PlanningThread background_;  // last: its jobs use the others
};

}  // namespace ropewalk::tune
