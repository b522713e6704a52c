// The thread that plans in the background: one for all that a process plans.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <thread>

#include "core/fork.h"
#include "core/mutex.h"

namespace ropewalk::tune {

/// Runs jobs in their order, on a thread that there is while jobs are left. It leaves the cores to
/// others: its priority is low. It also ends before the process's static objects do.
///
/// Threads: any. Processes: the one that made it; in a forked child nothing runs.
class PlanningThread {
 public:
  PlanningThread();
  /// As stop().
  ~PlanningThread();
  PlanningThread(const PlanningThread&) = delete;
  PlanningThread& operator=(const PlanningThread&) = delete;

  /// `job` throws nothing. check_stopped() (core/interrupt.h) ends what it calculates on stop().
  void post(std::function<void()> job);
  /// Ends the job that runs, soon, and forgets the others. Not from a job.
  void stop() noexcept;
  [[nodiscard]] const std::atomic<bool>& stopped() const noexcept { return stop_; }

 private:
  void run();

  const Belonging belonging_;
  std::atomic<bool> stop_{false};
  Mutex mutex_;
  std::deque<std::function<void()>> jobs_ RW_GUARDED_BY(mutex_);
  bool running_ RW_GUARDED_BY(mutex_) = false;  // the thread has not decided to end
  std::thread thread_ RW_GUARDED_BY(mutex_);
};

}  // namespace ropewalk::tune
