// Whether a communicator is whole, and if not, why.
//
// The first thing that breaks it stays its error: every later call ends with it.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "bootstrap/monitor.h"
#include "core/error.h"
#include "core/mutex.h"

namespace ropewalk::bootstrap {

/// Threads: all functions may be called by any thread; on_* come from the service thread.
class FailureState : public Observer {
 public:
  /// Breaks the communicator unless it is broken already.
  void fail(Errc code, const std::string& text);

  /// Calls `hook` once, when the communicator breaks (or now, if it is broken), by the thread that
  /// breaks it; hooks of several calls in their order. A hook calls nothing of this object.
  void when_broken(std::function<void()> hook);
  /// Forgets all hooks; none is running then.
  void forget_hooks();

  /// Cheap enough for every turn of a wait.
  [[nodiscard]] bool broken() const noexcept { return broken_.load(std::memory_order_acquire); }
  /// @throws the error that broke the communicator, if any
  void check() const {
    if (broken()) raise();
  }
  /// The error; kInternal and "" while whole.
  [[nodiscard]] Error error() const;

  [[nodiscard]] std::vector<int> suspected() const;
  [[nodiscard]] std::vector<int> left() const;
  /// Ranks that were lost, and why.
  [[nodiscard]] std::map<int, std::string> lost() const;
  /// Whether left() has any. Cheap.
  [[nodiscard]] bool any_left() const noexcept { return any_left_.load(std::memory_order_acquire); }

  void on_lost(int rank, const std::string& reason) override;
  void on_suspect(int rank, bool suspected) override;
  void on_left(int rank) override;
  void on_abort(int rank, const std::string& reason) override;

 private:
  [[noreturn]] void raise() const;

  std::atomic<bool> broken_{false};
  std::atomic<bool> any_left_{false};
  mutable Mutex mutex_;
  Errc code_ RW_GUARDED_BY(mutex_) = Errc::kInternal;
  std::string text_ RW_GUARDED_BY(mutex_);
  std::set<int> suspected_ RW_GUARDED_BY(mutex_);
  std::set<int> left_ RW_GUARDED_BY(mutex_);
  std::map<int, std::string> lost_ RW_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> hooks_ RW_GUARDED_BY(mutex_);
};

}  // namespace ropewalk::bootstrap
