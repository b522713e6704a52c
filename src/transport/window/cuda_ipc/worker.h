// A thread for errands that may take long: opening and closing other processes' device memory.
//
// Closing may wait until the GPU's kernels are done, and a kernel may be waiting for the very
// thread that drives the connection; so that thread must not do it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <thread>

#include "core/mutex.h"

namespace ropewalk::transport::window {

/// Runs errands in their order. Threads: any may call run(). The thread starts with the first
/// errand; the destructor waits for the last.
class Worker {
 public:
  Worker() = default;
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  void run(std::function<void()> errand);

 private:
  void loop();

  Mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> errands_ RW_GUARDED_BY(mutex_);
  bool ending_ RW_GUARDED_BY(mutex_) = false;
  bool started_ RW_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ropewalk::transport::window
