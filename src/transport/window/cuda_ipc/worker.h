// A thread for tasks that may take long: opening and closing other processes' device memory. It
// also watches the sockets on which these are requested.
//
// Closing may wait until the GPU's kernels are done, and a kernel may be waiting for the very
// thread that drives the connection; so that thread must not do it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "core/file_descriptor.h"
#include "core/mutex.h"

namespace ropewalk::transport::window {

/// Runs errands in their order. Threads: any. The thread starts with the first errand or socket;
/// the destructor waits for the last errand.
class Worker {
 public:
  Worker() = default;
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  /// @throws Error kSystem when the thread cannot be started
  void run(std::function<void()> errand);
  /// Calls `readable` whenever the descriptor can be read, until it is unwatched or its other end
  /// is closed.
  /// @throws as run()
  void watch(int descriptor, std::function<void()> readable);
  /// When it returns, the callback of watch() no longer runs. Not to be called from an errand.
  void unwatch(int descriptor) noexcept;

 private:
  using Watched = std::map<int, std::shared_ptr<std::function<void()>>>;
  void start() RW_REQUIRES(mutex_);
  void wake() noexcept;
  void loop();
  void run_errands();
  void serve(int descriptor, const std::shared_ptr<std::function<void()>>& readable, bool ended);

  Mutex mutex_;
  std::condition_variable served_changed_;
  FileDescriptor bell_;
  Watched watched_ RW_GUARDED_BY(mutex_);
  int served_ RW_GUARDED_BY(mutex_) = -1;
  std::deque<std::function<void()>> errands_ RW_GUARDED_BY(mutex_);
  bool ending_ RW_GUARDED_BY(mutex_) = false;
  bool started_ RW_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ropewalk::transport::window
