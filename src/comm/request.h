// An operation that was started and not waited for.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/interrupt.h"
#include "core/mutex.h"
#include "message/helping.h"

namespace ropewalk::comm {

/// Shared by the caller and the thread that runs the operation. Threads: any.
class Request {
 public:
  /// Who waits makes progress so. @pre nobody waits, and the operation has not been started
  void let_help(std::shared_ptr<message::Helping> helping) { helping_ = std::move(helping); }

  void finish() { end(std::nullopt); }
  void fail(const Error& error) { end(error); }

  /// @return true when the operation ended (see error()), false when `timeout` passed first;
  ///         a negative timeout waits for ever
  /// @throws Error kInterrupted; the operation goes on
  bool wait(std::chrono::microseconds timeout) {
    using Clock = std::chrono::steady_clock;
    const auto done = [this]() RW_REQUIRES(mutex_) { return done_; };
    // A century: sums of longer times with the clock would overflow.
    const auto most = std::min<std::chrono::microseconds>(timeout, std::chrono::years(100));
    const auto last = timeout.count() < 0 ? Clock::time_point::max() : Clock::now() + most;
    if (helping_ != nullptr) help(last);
    Lock lock(mutex_);
    return lock.wait_until(ended_, last, done, kInterruptPeriod,
                           [] { check_interrupt("waiting for an operation"); });
  }

  [[nodiscard]] std::optional<Error> error() const {
    const Lock lock(mutex_);
    return error_;
  }

 private:
  // Until the operation ended, or `last`, or while another thread does.
  void help(std::chrono::steady_clock::time_point last) {
    using Clock = std::chrono::steady_clock;
    const auto ended = [this] { return is_over_.load(std::memory_order_acquire); };
    while (!ended()) {
      const Clock::time_point until = std::min(last, Clock::now() + kInterruptPeriod);
      helping_->until(ended, until);
      if (until == last || Clock::now() < until) return;
      check_interrupt("waiting for an operation");
    }
  }
  void end(std::optional<Error> error) {
    {
      const Lock lock(mutex_);
      if (done_) return;
      done_ = true;
      is_over_.store(true, std::memory_order_release);
      error_ = std::move(error);
    }
    ended_.notify_all();
  }

  std::shared_ptr<message::Helping> helping_;
  std::atomic<bool> is_over_{false};
  mutable Mutex mutex_;
  std::condition_variable ended_;
  bool done_ RW_GUARDED_BY(mutex_) = false;
  std::optional<Error> error_ RW_GUARDED_BY(mutex_);
};

}  // namespace ropewalk::comm
