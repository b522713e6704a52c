// Which algorithm, how many channels, which chunk: the checked schedule that the cost model
// (cost_model.h) finds fastest.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/settings.h"
#include "core/types.h"
#include "schedule/checked.h"
#include "schedule/compile.h"
#include "tune/cost_model.h"

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
};

/// Threads: one at a time.
class Tuner {
 public:
  Tuner(const Config& config, const GroupFacts& facts, const MachineConstants& constants,
        schedule::CheckedSchedules& schedules);

  /// The choice for units of `unit_bytes`. The reference stays valid.
  /// @throws Error kInvalidArgument when the setting ALGORITHM names one that cannot do this
  const Choice& choose(Collective collective, int root, std::size_t unit_bytes);

  /// Every algorithm that can do this, priced for units of `unit_bytes` exactly, the cheapest
  /// first. choose() prices the middle of a power of two, so that its choice may be another one.
  [[nodiscard]] std::vector<Choice> priced(Collective collective, int root, std::size_t unit_bytes);

  /// Whether the setting ALGORITHM names an algorithm for this operation that can do it.
  [[nodiscard]] bool is_forced(Collective collective, int root) const;

  /// Chunks of sends and receives.
  [[nodiscard]] const Choice& point_to_point() const noexcept { return point_to_point_; }

 private:
  static constexpr std::size_t kBuckets = 64;  // powers of two
  // The best chunks of one algorithm.
  [[nodiscard]] Choice priced(const std::string& algorithm, const ScheduleShape& shape,
                              std::size_t unit_bytes) const;
  [[nodiscard]] schedule::Request request_of(Collective collective, int root) const noexcept;
  [[nodiscard]] std::vector<std::string> candidates(Collective collective, int root) const;
  void set_chunks(Choice& choice) const;

  GroupFacts facts_;
  CostContext context_;
  schedule::CheckedSchedules& schedules_;
  std::map<Collective, std::string> forced_;
  int channels_ = 1;
  std::size_t address_bytes_ = 0;
  Choice point_to_point_;
  int next_index_ = 0;
  std::array<std::array<std::unique_ptr<Choice>, kBuckets>, kNumCollectives> rootless_;
  std::map<std::pair<Collective, int>, std::array<std::unique_ptr<Choice>, kBuckets>> rooted_;
};

}  // namespace ropewalk::tune
