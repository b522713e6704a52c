// What the plugin offers while the job runs: records to `ropewalk status` (core/status_socket.h),
// and files of them at a signal (setting TRACE_SIGNAL).
//
// All of it runs on a thread of its own, which is there as long as NCCL has communicators, and does
// something only when it is asked: NCCL's threads pay nothing.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "core/event_loop.h"
#include "core/mutex.h"
#include "profiler/recorder.h"

namespace ropewalk::profiler {

/// Threads: any.
class Endpoint {
 public:
  /// The process's. It is never destroyed: NCCL's threads may end after the program's last object.
  static Endpoint& instance();

  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  /// Offers the records until remove(). With the first one it begins to listen.
  /// @param pattern  of TRACE_FILE; empty: no file is written at a signal
  /// @param signal  as TRACE_SIGNAL has it
  /// @throws Error kSystem; `recorder` is to be removed all the same
  void add(const Recorder& recorder, const std::string& pattern, std::string_view signal);
  /// When it returns nothing reads `recorder` any more. Nothing happens if it was not added.
  void remove(const Recorder& recorder);

 private:
  class Server;

  Endpoint();
  ~Endpoint() = default;
  std::string tell(std::size_t calls);
  void dump();

  EventLoop loop_;
  Mutex mutex_;  // of the recorders
  std::map<const Recorder*, std::string> recorders_ RW_GUARDED_BY(mutex_);
  Mutex server_mutex_;  // held while the server begins or ends; taken first
  std::shared_ptr<Server> server_ RW_GUARDED_BY(server_mutex_);
};

}  // namespace ropewalk::profiler
