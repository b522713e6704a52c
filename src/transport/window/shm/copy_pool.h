// Threads that copy from other processes: one core alone copies slower than links and memory allow.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "core/mutex.h"

namespace ropewalk::transport::window {

/// A copy out of a process. Owned by who submits it, and to be left alone until done() is true.
class CopyJob {
 public:
  /// @throws Error when the copy failed
  [[nodiscard]] bool done() {
    if (!done_.load(std::memory_order_acquire)) return false;
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    return true;
  }

 private:
  friend class CopyPool;
  pid_t process_ = 0;
  void* destination_ = nullptr;
  std::uint64_t source_ = 0;
  std::size_t bytes_ = 0;
  std::exception_ptr error_;
  std::atomic<bool> done_ = true;
};

/// Threads: any may submit.
class CopyPool {
 public:
  explicit CopyPool(int threads);
  ~CopyPool();  ///< executes submitted copies
  CopyPool(const CopyPool&) = delete;
  CopyPool& operator=(const CopyPool&) = delete;
  [[nodiscard]] int threads() const noexcept { return static_cast<int>(threads_.size()); }

  void submit(CopyJob& job, pid_t process, void* destination, std::uint64_t source,
              std::size_t bytes);

 private:
  void work();
  Mutex mutex_;
  std::condition_variable changed_;
  std::deque<CopyJob*> jobs_ RW_GUARDED_BY(mutex_);
  bool ending_ RW_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

/// How many threads copy at once, the calling one included, when the setting COPY_THREADS is 0:
/// one for each 4 CPUs that this process may use, at least one and at most 8.
int default_copy_threads() noexcept;

}  // namespace ropewalk::transport::window
