// The thread that moves a rank's network links where nobody on the host waits: those of kernels.
//
// It never calls CUDA: a call may wait for a kernel that waits for this thread. It polls without
// pause while data moves and some time after, then more and more seldom, so that a communicator
// that is not used takes next to nothing of a core; wake() makes it attentive again.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/mutex.h"
#include "link/network_links.h"

namespace ropewalk::link {

/// Threads: any.
class ProgressThread {
 public:
  /// How it spends the time while nothing moves.
  struct Policy {
    std::chrono::microseconds busy{1'000};       ///< polls all the time
    std::chrono::microseconds nap{20};           ///< then sleeps so long between two polls...
    std::chrono::microseconds naps_for{50'000};  ///< ...for that time
    std::chrono::microseconds sleep{1'000};      ///< and then so long
    /// Processors to run on, those of them that the process may use; empty: any.
    std::vector<int> cpus = {};
  };

  /// Takes the links over: from now on they are accessed only by with_links().
  /// @param on_error called once, in the thread, if the links can no longer make progress
  ProgressThread(std::unique_ptr<NetworkLinks> links, Policy policy,
                 std::function<void(const Error&)> on_error);
  /// Data in flight may be lost.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// Calls `function(NetworkLinks&)` while the thread does not use them.
  template <typename Function>
  auto with_links(Function&& function) {
    wake();
    // The thread, which takes the lock again at once, leaves it to whoever wants it.
    ++wanted_;
    const Lock lock(mutex_);
    --wanted_;
    return function(*links_);
  }

  /// Links will be needed soon.
  void wake() noexcept;

  /// What links could not be moved for; nothing while they can. Waits for nobody until then: it is
  /// asked before each launch.
  [[nodiscard]] std::optional<Error> failure() const;

 private:
  void run();
  bool poll_once();
  void rest(std::chrono::microseconds idle);

  Policy policy_;
  std::function<void(const Error&)> on_error_;
  mutable Mutex mutex_;  // of the links, held while they are polled
  std::unique_ptr<NetworkLinks> links_ RW_GUARDED_BY(mutex_);
  std::optional<Error> failure_ RW_GUARDED_BY(mutex_);
  std::atomic<bool> failed_{false};  // there is one
  std::atomic<int> wanted_{0};       // threads that wait for mutex_
  std::atomic<bool> stop_{false};
  std::atomic<bool> awake_{true};
  std::mutex sleep_mutex_;
  std::condition_variable sleep_;
  std::thread thread_;
};

}  // namespace ropewalk::link
