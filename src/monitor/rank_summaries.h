// What the ranks of a communicator say of themselves, for monitoring (job_ports.h): asked by one of
// them over the bootstrap. Service threads ask and answer, so that a rank answers while its program
// hangs; calls pay nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "core/mutex.h"
#include "executor/traffic.h"

namespace ropewalk::monitor {

struct RankSummary {
  int rank = 0;
  std::string host;
  int process = 0;
  int device = -1;         ///< its GPU; -1: none
  std::uint64_t call = 0;  ///< number of the last collective that it, or its GPU, has entered
  bool inside = false;     ///< it has not completed that
  std::string operation;   ///< that collective
  std::string failure;     ///< "" as long as the communicator is whole
  double stalled_seconds = 0;
  std::map<std::string, std::uint64_t> counts;  ///< calls by operation
  std::vector<executor::Traffic::Entry> links;
};

/// As text, and back. The form is the library's own.
[[nodiscard]] std::string to_text(const RankSummary& summary);
/// @return nothing if it is none
[[nodiscard]] std::optional<RankSummary> rank_summary(std::string_view text);

/// Threads: the service thread, but for its making and end.
class RankSummaries {
 public:
  /// Answers the others until it is destroyed. The bootstrap outlives it.
  /// @param own this rank's summary as it is then, called by the service thread
  RankSummaries(bootstrap::Bootstrap& bootstrap, std::function<RankSummary()> own);
  ~RankSummaries();
  RankSummaries(const RankSummaries&) = delete;
  RankSummaries& operator=(const RankSummaries&) = delete;

  /// Asks all others but `left`; does not wait. Answers to what was asked before are dropped.
  void ask(std::span<const int> left);
  /// By rank, with this one: those that have answered since. `all`: nobody is missing.
  struct Answers {
    std::map<int, RankSummary> by_rank;
    bool all = false;
  };
  [[nodiscard]] Answers answers() const;

 private:
  void on_ask(int peer, std::span<const std::byte> bytes);
  void on_answer(int peer, std::span<const std::byte> bytes);

  bootstrap::Bootstrap& bootstrap_;
  const std::function<RankSummary()> own_;
  mutable Mutex mutex_;
  std::uint64_t round_ RW_GUARDED_BY(mutex_) = 0;
  std::size_t asked_ RW_GUARDED_BY(mutex_) = 0;
  std::map<int, RankSummary> answers_ RW_GUARDED_BY(mutex_);
};

}  // namespace ropewalk::monitor
