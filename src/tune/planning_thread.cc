#include "tune/planning_thread.h"

#include <pthread.h>
#include <sys/resource.h>

#include <csignal>
#include <set>
#include <utility>

#include "core/interrupt.h"

namespace ropewalk::tune {
namespace {

constexpr int kNiceness = 10;

// All that have had a thread. Never destroyed: threads may end after static objects.
struct Started {
  Mutex mutex;
  std::set<PlanningThread*> all RW_GUARDED_BY(mutex);
};

Started& started() {
  static Started* const leaked = new Started;
  return *leaked;
}

// Plans read tables that are static objects of functions: at the end of the process all threads end
// before these do, as plans that were made before the first thread began have used them.
struct StopAtExit {
  ~StopAtExit() {
    std::set<PlanningThread*> all;
    {
      const Lock lock(started().mutex);
      all = started().all;
    }
    for (PlanningThread* thread : all) thread->stop();
  }
};

}  // namespace

PlanningThread::PlanningThread() = default;

PlanningThread::~PlanningThread() {
  stop();
  if (belonging_.elsewhere()) return;
  const Lock lock(started().mutex);
  started().all.erase(this);
}

void PlanningThread::post(std::function<void()> job) {
  if (belonging_.elsewhere()) return;
  const Lock lock(mutex_);
  if (stop_) return;
  jobs_.push_back(std::move(job));
  if (running_) return;
  if (thread_.joinable()) thread_.join();  // it has ended, or is about to
  static const StopAtExit stop_at_exit;
  {
    const Lock lock_of_all(started().mutex);
    started().all.insert(this);
  }
  running_ = true;
  // Signals are the application's.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    running_ = false;
    jobs_.pop_back();
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void PlanningThread::run() {
  pthread_setname_np(pthread_self(), "rw-planning");
  (void)setpriority(PRIO_PROCESS, 0, kNiceness);  // of this thread alone, on Linux
  const InterruptedBy stop(stop_);
  for (;;) {
    std::function<void()> job;
    {
      const Lock lock(mutex_);
      if (jobs_.empty()) {
        running_ = false;
        return;
      }
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

void PlanningThread::stop() noexcept RW_NO_THREAD_ANALYSIS {
  if (belonging_.elsewhere()) {
    // The thread is the parent's: what stands here is a copy of its handle.
    (void)new std::thread(std::move(thread_));
    return;
  }
  stop_ = true;
  std::thread ending;
  {
    const Lock lock(mutex_);
    jobs_.clear();
    ending.swap(thread_);
  }
  if (ending.joinable()) ending.join();
}

}  // namespace ropewalk::tune
