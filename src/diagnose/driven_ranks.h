// The ranks that one thread drives in a measurement.
//
// One rank makes its calls alone. Several make each of their calls in one group, which is their
// only additional cost; untimed work that waits for other ranks runs in a thread for each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/group.h"
#include "diagnose/measured_rank.h"

namespace ropewalk::diagnose {

/// Ranks of one communicator. The ranks of other threads and processes do the same.
///
/// Threads: one. Lifetime: within the communicators'.
class DrivenRanks {
 public:
  explicit DrivenRanks(std::span<comm::Communicator* const> comms) : comms_(comms) {}
  /// Where there are several ranks and leave() was not called, breaks them all first: the kernels
  /// and the calls of one may wait for another's, which will not come.
  ~DrivenRanks();
  DrivenRanks(const DrivenRanks&) = delete;
  DrivenRanks& operator=(const DrivenRanks&) = delete;

  /// Takes buffers. Returns when all ranks have theirs: memory of a GPU cannot be had while other
  /// GPUs of the process wait for this one.
  void prepare(const MeasureSpec& spec);
  /// Nothing of any rank is at work, and the buffers are free to go.
  void leave() noexcept { left_ = true; }

  /// Runs or enqueues the calls of one turn (MeasuredRank::turns()).
  void run(std::size_t turn);
  /// Moves the next calls (MeasuredRank::advance()).
  void advance() noexcept {
    for (const auto& rank : ranks_) rank->advance();
  }
  /// Returns when all that was run is done.
  void finish();
  void barrier();

  /// Captures what `enqueue` runs. Returns when all ranks have.
  void capture(const std::function<void()>& enqueue);
  void replay();

  /// Runs `body` concurrently with the index of each rank in all().
  void at_once(const std::function<void(std::size_t)>& body);

  [[nodiscard]] std::span<const std::unique_ptr<MeasuredRank>> all() const noexcept {
    return ranks_;
  }
  [[nodiscard]] MeasuredRank& first() const noexcept { return *ranks_.front(); }

 private:
  std::span<comm::Communicator* const> comms_;
  std::vector<std::unique_ptr<MeasuredRank>> ranks_;
  comm::Group group_;
  std::vector<float> nothing_;  // what barriers reduce
  std::vector<MeasuredRank*> unfinished_;
  bool left_ = false;
};

}  // namespace ropewalk::diagnose
