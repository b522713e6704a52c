// What the communicators of this process are called with, for who asks from outside: `ropewalk
// status`, which finds out which rank of a job is missing while the job hangs.
//
// At a StatusSocket (core/status_socket.h): one line of JSON for each communicator, as
// call_report() has it, with its last N calls.
//
// All of it runs on the service thread (bootstrap/context.h), when somebody asks: calls pay
// nothing.
#pragma once

#include "bootstrap/context.h"
#include "core/status_socket.h"
#include "monitor/comms_service.h"

namespace ropewalk::comm {

class Communicator;

/// Threads: any. Lifetime: must outlive the communicators that it was given.
class StatusEndpoint {
 public:
  explicit StatusEndpoint(bootstrap::Context& context);
  ~StatusEndpoint() = default;
  StatusEndpoint(const StatusEndpoint&) = delete;
  StatusEndpoint& operator=(const StatusEndpoint&) = delete;

  /// Offers the records of `comm` until remove(). With the first one it begins to listen, and to
  /// watch for the signal of the setting TRACE_SIGNAL. What fails is logged.
  void add(const Communicator& comm) noexcept;
  /// When it returns nothing reads `comm` any more. Nothing happens if it was not added.
  void remove(const Communicator& comm) noexcept;

 private:
  monitor::CommsService<Communicator, StatusSocket> service_;
};

}  // namespace ropewalk::comm
