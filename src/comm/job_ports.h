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

#include "bootstrap/context.h"
#include "comm/comms_service.h"

namespace ropewalk::comm {

class Communicator;

/// Threads: any. Lifetime: must outlive the communicators that it was given.
class JobPorts {
 public:
  explicit JobPorts(bootstrap::Context& context);
  ~JobPorts();
  JobPorts(const JobPorts&) = delete;
  JobPorts& operator=(const JobPorts&) = delete;

  /// Answers for `comm`, which has summaries(), until remove(). Listens on what its settings name,
  /// unless the process does by then. What fails is logged: a port in use with level INFO.
  void add(const Communicator& comm) noexcept;
  /// When it returns nothing reads `comm` any more. Nothing happens if it was not added.
  void remove(const Communicator& comm) noexcept;

 private:
  class Server;
  CommsService<Server> service_;
};

}  // namespace ropewalk::comm
