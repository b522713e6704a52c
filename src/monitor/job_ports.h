// The ports for monitoring inside the job: NCCL's RAS protocol (setting RAS_PORT) and Prometheus'
// text (METRICS_PORT), each on 127.0.0.1 alone. Of the processes of a host that are told the same
// port the first has it, as long as it has communicators. It answers for the ranks of all its
// communicators, whatever hosts they are on, and asks the others when somebody asks it
// (rank_summaries.h).
//
// Who can reach the host's loopback interface gets an answer, as with NCCL's RAS: any user of the
// host. So both are off by default.
//
// A client that says MONITOR is told of ranks that come and die (job_events.h) until it goes.
//
// All of it runs on the service thread (bootstrap/context.h): calls pay nothing.
#pragma once

#include <cstdint>

#include "bootstrap/context.h"
#include "bootstrap/failure_state.h"
#include "core/settings.h"
#include "monitor/comms_service.h"
#include "monitor/rank_summaries.h"

namespace ropewalk::monitor {

/// A communicator, as it is monitored. Its parts outlive its being served.
struct MonitoredComm {
  std::uint64_t identity = 0;
  int rank = 0;
  int size = 1;
  const Config& config;
  const bootstrap::FailureState& failure;
  RankSummaries& summaries;
};

/// Threads: any. Lifetime: must outlive the communicators that it was given.
class JobPorts {
 public:
  explicit JobPorts(bootstrap::Context& context);
  ~JobPorts();
  JobPorts(const JobPorts&) = delete;
  JobPorts& operator=(const JobPorts&) = delete;

  /// Answers for `comm` until remove(). Listens on what its settings name, unless the process does
  /// by then. What fails is logged: a port in use with level INFO.
  void add(const MonitoredComm& comm) noexcept;
  /// When it returns nothing reads `comm` any more. Nothing happens if it was not added.
  void remove(const MonitoredComm& comm) noexcept;

 private:
  class Server;
  CommsService<MonitoredComm, Server> service_;
};

}  // namespace ropewalk::monitor
