// For whom a rank waits in an operation in which nothing moves. The thread that waits tells it now
// and then; others read it at any time.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/mutex.h"

namespace ropewalk::comm {

/// Threads: any.
class Stall {
 public:
  struct State {
    std::vector<int> peers;
    std::string operation;
    double seconds = 0;  ///< since anything moved
  };

  /// Of a wait that goes on: to be told again within kFresh.
  void tell(State state) {
    const Lock lock(mutex_);
    state_ = std::move(state);
    told_ = std::chrono::steady_clock::now();
  }

  /// Nothing when nothing was told for a while: then the wait is over, which nobody tells, as that
  /// would cost every operation. (Or the process stands still.)
  [[nodiscard]] std::optional<State> now() const {
    const Lock lock(mutex_);
    if (!state_.has_value()) return std::nullopt;
    const auto age = std::chrono::steady_clock::now() - told_;
    if (age > kFresh) return std::nullopt;
    State state = *state_;
    state.seconds += std::chrono::duration<double>(age).count();
    return state;
  }

  /// A loaded machine may let a thread wait for a core for a second.
  static constexpr std::chrono::milliseconds kFresh{1500};

 private:
  mutable Mutex mutex_;
  std::optional<State> state_ RW_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point told_ RW_GUARDED_BY(mutex_);
};

}  // namespace ropewalk::comm
