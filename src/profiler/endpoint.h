// What the plugin offers while the job runs: records to `ropewalk status` (core/status_socket.h),
// and files of them at a signal (setting TRACE_SIGNAL); and files of what NCCL has not finalized
// when the program ends, which many programs leave to the system.
//
// What is asked for is done on a thread of its own, which is there as long as NCCL has
// communicators: NCCL's threads pay nothing.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "core/event_loop.h"
#include "core/mutex.h"
#include "core/status_socket.h"
#include "profiler/recorder.h"

namespace ropewalk::profiler {

/// Threads: any.
class Endpoint {
 public:
  /// The process's. It is never destroyed: NCCL's threads may end after the program's last object.
  static Endpoint& instance();

  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  /// Writes the records at the program's end, unless remove() comes before.
  /// @param pattern  of TRACE_FILE; empty: no file is written
  void add(const Recorder& recorder, const std::string& pattern);
  /// Offers all records from now on, as long as there are any.
  /// @param signal  as TRACE_SIGNAL has it
  /// @throws Error kSystem
  void listen(std::string_view signal);
  /// When it returns nothing reads `recorder` any more. Nothing happens if it was not added.
  void remove(const Recorder& recorder);

 private:
  Endpoint();
  ~Endpoint() = default;
  std::string tell(std::size_t calls);
  void dump(const char* when);

  const pid_t process_;  // a forked child has these records, and they are not its own
  EventLoop loop_;
  Mutex mutex_;  // of the recorders
  std::map<const Recorder*, std::string> recorders_ RW_GUARDED_BY(mutex_);
  Mutex server_mutex_;  // held while the server begins or ends; taken first
  std::shared_ptr<StatusSocket> server_ RW_GUARDED_BY(server_mutex_);
};

}  // namespace ropewalk::profiler
