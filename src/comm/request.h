// An operation that was started and not waited for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "core/error.h"

namespace ropewalk::comm {

/// Shared by the caller and the thread that runs the operation. Threads: any.
class Request {
 public:
  void finish() { end(std::nullopt); }
  void fail(const Error& error) { end(error); }

  /// @return true when the operation ended (see error()), false when `timeout` passed first;
  ///         a negative timeout waits for ever
  bool wait(std::chrono::microseconds timeout) {
    std::unique_lock lock(mutex_);
    if (timeout.count() < 0) {
      ended_.wait(lock, [this] { return done_; });
      return true;
    }
    return ended_.wait_for(lock, timeout, [this] { return done_; });
  }

  [[nodiscard]] std::optional<Error> error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  void end(std::optional<Error> error) {
    {
      const std::lock_guard lock(mutex_);
      if (done_) return;
      done_ = true;
      error_ = std::move(error);
    }
    ended_.notify_all();
  }

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable ended_;
  bool done_ = false;
  std::optional<Error> error_;
};

}  // namespace ropewalk::comm
