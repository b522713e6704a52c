// A mutex for calls of some 100 ns, where the cost of a std::mutex would show.
#pragma once

#include <atomic>
#include <thread>

#include "core/mutex.h"

namespace ropewalk::transport::psm2 {

class RW_THREAD_ANNOTATION(capability("mutex")) SpinMutex {
 public:
  bool try_lock() noexcept RW_THREAD_ANNOTATION(try_acquire_capability(true)) {
    return !held_.load(std::memory_order_relaxed) &&
           !held_.exchange(true, std::memory_order_acquire);
  }
  /// Yields: the holder may be waiting for a peer to connect.
  void lock() noexcept RW_THREAD_ANNOTATION(acquire_capability()) {
    while (held_.exchange(true, std::memory_order_acquire)) {
      for (int i = 0; i < 100 && held_.load(std::memory_order_relaxed); ++i) {
      }
      if (held_.load(std::memory_order_relaxed)) std::this_thread::yield();
    }
  }
  void unlock() noexcept RW_THREAD_ANNOTATION(release_capability()) {
    held_.store(false, std::memory_order_release);
  }

 private:
  std::atomic<bool> held_ = false;
};

/// Holds a SpinMutex to the end of the block.
class RW_THREAD_ANNOTATION(scoped_lockable) Spin {
 public:
  explicit Spin(SpinMutex& mutex) RW_THREAD_ANNOTATION(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~Spin() RW_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }
  Spin(const Spin&) = delete;
  Spin& operator=(const Spin&) = delete;

 private:
  SpinMutex& mutex_;
};

}  // namespace ropewalk::transport::psm2
