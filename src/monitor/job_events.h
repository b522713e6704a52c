// What happens to a job while somebody watches it: the events of NCCL's RAS command MONITOR (NCCL
// 2.29 and later; NCCL's user guide, "Troubleshooting", "Monitoring Mode"), with the names that
// NCCL gives them. Of values alone.
#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "monitor/job_report.h"

namespace ropewalk::monitor {

/// A process of a job.
struct JobProcess {
  std::string host;
  int number = 0;
  std::set<int> devices;  ///< its GPUs
};

struct JobEvent {
  /// NCCL's groups: LIFECYCLE has who joins and dies, TRACE what may come to that.
  enum class Group : std::uint8_t { kLifecycle, kTrace };

  Group group = Group::kLifecycle;
  std::string name;                   ///< "PEER_DEAD"
  std::optional<JobProcess> process;  ///< nothing if it never answered
  std::string details;
};

/// What a rank knows by itself of the others of a communicator.
struct PeerStates {
  std::uint64_t identity = 0;
  std::set<int> suspected;          ///< no sign of life for some time
  std::map<int, std::string> lost;  ///< and why
  std::set<int> left;               ///< that finalized it
};

/// Tells what has changed since the last look. Threads: one at a time.
class JobWatch {
 public:
  /// Who the ranks are, as they answered. @return PEER_NEW for each process that was unknown,
  /// unless
  ///         none was known: the watch begins then
  [[nodiscard]] std::vector<JobEvent> learn(std::span<const CommunicatorSummary> all);
  /// @return PEER_DEAD, once for each process; PEER_UNRESPONSIVE, PEER_RECOVERED, PEER_DISCONNECTED
  [[nodiscard]] std::vector<JobEvent> see(const PeerStates& now);
  /// The communicator has ended.
  void forget(std::uint64_t identity);
  /// Whether learn() was told of it.
  [[nodiscard]] bool knows(std::uint64_t identity) const { return ranks_.contains(identity); }

 private:
  using Name = std::pair<std::string, int>;  // host and number of a process
  [[nodiscard]] std::optional<JobProcess> process_of(std::uint64_t identity, int rank) const;

  std::map<Name, std::set<int>> processes_;  // and their GPUs
  std::map<std::uint64_t, std::map<int, Name>> ranks_;
  std::map<std::uint64_t, PeerStates> before_;
  std::set<Name> dead_;
};

/// As MONITOR's text has it: a line.
[[nodiscard]] std::string event_text(const JobEvent& event, std::time_t when);
/// As it has it after SET FORMAT json: an object of several lines.
[[nodiscard]] std::string event_json(const JobEvent& event, std::time_t when);

}  // namespace ropewalk::monitor
