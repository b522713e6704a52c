// Threads that enqueue one part of a group each, while the calling thread enqueues its own.
//
// A launch takes the thread that makes it 3 us, about as long as a short collective. A thread with
// two GPUs starts the second one's kernel that much later than the first one's, which waits for it;
// launched by two threads, both begin at once.
//
// A thread that has to be woken comes too late. So a helper looks for work without sleeping as long
// as calls follow each other closely, and sleeps soon after the last one. Nobody waits for a helper
// that has not begun: the caller then does that part itself. So a helper costs time only where it
// is in the middle of its part, and calls that come one by one are made by their own thread alone.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "core/fork.h"

namespace ropewalk::comm {

/// Threads: one at a time.
class EnqueueThreads {
 public:
  /// Between the end of a call and the next one, for them to follow each other closely.
  static constexpr std::chrono::microseconds kClosely{30};
  /// After so many such calls the helpers are woken.
  static constexpr int kCallsInARow = 32;
  /// A helper without work sleeps after that.
  static constexpr std::chrono::microseconds kAwake{100};

  EnqueueThreads();
  ~EnqueueThreads();
  EnqueueThreads(const EnqueueThreads&) = delete;
  EnqueueThreads& operator=(const EnqueueThreads&) = delete;

  /// Runs part(0) to part(`parts` - 1), each once, and returns when all have ended: the first by
  /// the calling thread, each other one by a helper that is awake or by the calling thread. In a
  /// forked child of the process that made this object: all by the calling thread.
  /// @throws what the lowest part threw that did, after all have ended
  void run(std::size_t parts, const std::function<void(std::size_t)>& part);

 private:
  class Helper;

  void wake(std::size_t number);

  Belonging belonging_;
  std::vector<std::unique_ptr<Helper>> helpers_;
  std::chrono::steady_clock::time_point last_end_{};
  int in_a_row_ = 0;
};

}  // namespace ropewalk::comm
