// The state of a job in the forms that monitoring reads: NCCL's RAS (text and JSON as NCCL 2.28 to
// 2.30 answer, which NVIDIA's `ncclras` prints) and Prometheus' text. Of values alone.
#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "monitor/rank_summaries.h"

namespace ropewalk::monitor {

/// One communicator, as far as its ranks answered.
struct CommunicatorSummary {
  std::uint64_t identity = 0;
  int size = 1;
  std::map<int, RankSummary> by_rank;
  /// Numbers of the collectives that the ranks were in a moment before; empty where that was not
  /// asked. Ranks that run are asked at slightly different times.
  std::map<int, std::uint64_t> before;

  [[nodiscard]] std::vector<int> missing() const;
  /// Ranks that have not entered a collective which another one was in a moment before.
  [[nodiscard]] std::vector<int> absent() const;
  [[nodiscard]] bool broken() const;
};

/// The report of STATUS and VERBOSE STATUS. @param seconds  that asking took
[[nodiscard]] std::string ras_text(std::span<const CommunicatorSummary> all, double seconds,
                                   bool verbose);
/// The same after SET FORMAT json.
[[nodiscard]] std::string ras_json(std::span<const CommunicatorSummary> all, double seconds);
/// A time as RAS writes it, by the local clock: "2026-11-26 14:05:09".
[[nodiscard]] std::string ras_timestamp(std::time_t when);
/// What /metrics answers: text of version 0.0.4.
[[nodiscard]] std::string metrics_text(std::span<const CommunicatorSummary> all);

}  // namespace ropewalk::monitor
