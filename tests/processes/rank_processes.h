// Ranks as processes of their own, for tests that kill them or put them on different hosts.
//
// The test's process forks before it has any thread and never uses Ropewalk itself. Rank 0 makes
// the unique id and hands it to the others through pipes.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace ropewalk::testing {

/// What a rank reported before it ended.
struct Report {
  bool error = false;
  Errc code = Errc::kInternal;
  std::string text;  ///< the error's, or what the body returned
  std::chrono::steady_clock::time_point when;
};

struct RankOptions {
  std::vector<std::pair<std::string, std::string>> settings;
  std::function<void(int rank)> before;  ///< in the new process, before anything else
};

/// Threads: one. Kills and reaps what still runs when destroyed.
class RankProcesses {
 public:
  /// Starts `size` processes; each joins and runs `body`, whose text it reports.
  RankProcesses(int size, const RankOptions& options,
                const std::function<std::string(comm::Communicator&)>& body);
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void signal(int rank, int number) const;

  /// The report of a rank; nothing when it ended without one or `timeout` passed.
  std::optional<Report> wait(int rank, std::chrono::milliseconds timeout);

 private:
  struct Rank {
    pid_t pid = -1;
    int report = -1;  // reading end
  };
  std::vector<Rank> ranks_;
};

}  // namespace ropewalk::testing
