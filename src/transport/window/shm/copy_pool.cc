#include "transport/window/shm/copy_pool.h"

#include <sched.h>

#include <algorithm>
#include <csignal>

#include "core/process_memory.h"

namespace ropewalk::transport::window {

CopyPool::CopyPool(int threads) {
  // The program's signals are for its own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

CopyPool::~CopyPool() {
  {
    const Lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void CopyPool::submit(CopyJob& job, pid_t process, void* destination, std::uint64_t source,
                      std::size_t bytes) {
  job.process_ = process;
  job.destination_ = destination;
  job.source_ = source;
  job.bytes_ = bytes;
  job.done_.store(false, std::memory_order_relaxed);
  {
    const Lock lock(mutex_);
    jobs_.push_back(&job);
  }
  changed_.notify_one();
}

void CopyPool::work() {
  while (true) {
    CopyJob* job = nullptr;
    {
      Lock lock(mutex_);
      lock.wait(changed_, [this]() RW_REQUIRES(mutex_) { return ending_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      job = jobs_.front();
      jobs_.pop_front();
    }
    try {
      read_process(job->process_, job->destination_, job->source_, job->bytes_);
    } catch (...) {
      job->error_ = std::current_exception();
    }
    job->done_.store(true, std::memory_order_release);
  }
}

int default_copy_threads() noexcept {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  return std::clamp(CPU_COUNT(&allowed) / 4, 1, 8);
}

}  // namespace ropewalk::transport::window
